//! Network namespaces, and clients and servers inside them.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

pub const TIMEOUT: Duration = Duration::from_secs(3);

/// Runs a command, which must succeed.
pub fn command(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A named network namespace, deleted on drop.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("knt-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        command(&format!("ip netns add {name}"));
        command(&format!("ip -n {name} link set lo up"));
        Self { name }
    }

    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Runs on a thread within the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(self.path()).unwrap();
        std::thread::scope(|scope| {
            scope
                .spawn(move || {
                    nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                    work()
                })
                .join()
                .unwrap()
        })
    }

    /// Serves every connection and datagram on a port with this name and the client's address.
    pub fn serve(&self, port: u16, says: &str) {
        let listener = self.run(|| TcpListener::bind(("::", port)).unwrap());
        let datagrams = self.run(|| UdpSocket::bind(("::", port)).unwrap());
        let name = says.to_owned();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let name = name.clone();
                std::thread::spawn(move || {
                    let peer = stream.peer_addr().unwrap().ip().to_canonical();
                    let mut request = [0; 1024];
                    // Every request on a connection gets a response, until the client closes it.
                    while stream.read(&mut request).is_ok_and(|length| length > 0) {
                        if stream.write_all(format!("{name} {peer}\n").as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let name = says.to_owned();
        std::thread::spawn(move || {
            let mut request = [0; 1024];
            while let Ok((_, client)) = datagrams.recv_from(&mut request) {
                let _ = datagrams.send_to(format!("{name} {}", client.ip().to_canonical()).as_bytes(), client);
            }
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// The response of a TCP server: its name and the address it saw.
pub fn ask(address: impl Into<SocketAddr>) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect_timeout(&address.into(), TIMEOUT)?;
    ask_again(&mut stream)
}

pub fn ask_again(stream: &mut TcpStream) -> std::io::Result<(String, String)> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"hello")?;
    let mut response = [0; 256];
    let length = stream.read(&mut response)?;
    Ok(split(&response[..length]))
}

pub fn ask_datagram(socket: &UdpSocket, address: SocketAddr) -> std::io::Result<(String, String)> {
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send_to(b"hello", address)?;
    let mut response = [0; 256];
    let (length, _) = socket.recv_from(&mut response)?;
    Ok(split(&response[..length]))
}

fn split(response: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(response);
    let (name, peer) = text.trim().split_once(' ').unwrap_or_default();
    (name.to_owned(), peer.to_owned())
}

/// The pod network of the namespace that the test is in.
pub struct Network {
    pub data: tempfile::TempDir,
    pub config: Value,
}

impl Network {
    pub fn new(pod_cidrs: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let config = json!({"cniVersion": "1.1.0", "name": "knarr", "type": "knarr", "bridge": "knarr0",
            "dataDir": data.path(), "podCIDRs": pod_cidrs, "clusterCIDRs": ["10.244.0.0/16", "fd00:244::/32"]});
        Self { data, config }
    }

    /// Calls the plugin as a container runtime does. The reply, or its error.
    pub fn call(&self, verb: &str, pod: &Namespace, extra: Value) -> Result<Value, Value> {
        let mut config = self.config.clone();
        for (key, value) in extra.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        // The pod's identity is passed in the environment.
        let mut taken = |key: &str| config.as_object_mut().and_then(|config| config.remove(key)).unwrap_or_default();
        let (args, path) = (taken("args"), taken("path"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(path) = path.as_str() {
            command.env("PATH", path);
        }
        let mut child = command
            .env("CNI_ARGS", args.as_str().unwrap_or_default())
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &pod.name)
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let response = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if output.status.success() { Ok(response) } else { Err(response) }
    }

    /// A pod with its addresses.
    pub fn add(&self, extra: Value) -> (Namespace, Vec<IpAddr>) {
        let pod = Namespace::new();
        let result = self.call("ADD", &pod, extra).unwrap();
        let addresses = result["ips"].as_array().unwrap().iter().map(|ip| {
            let text = ip["address"].as_str().unwrap();
            text.split('/').next().unwrap().parse().unwrap()
        });
        let addresses = addresses.collect();
        (pod, addresses)
    }
}

/// A host outside the cluster, on a link with the node: 192.168.50.1 is the node, 192.168.50.2 the outsider.
pub fn outsider() -> Namespace {
    let outside = Namespace::new();
    command("ip link set lo up");
    command(&format!("ip link add eth0 mtu 1400 type veth peer name eth0 netns {}", outside.name));
    command("ip address add 192.168.50.1/24 dev eth0");
    command("ip -6 address add fd50::1/64 dev eth0 nodad");
    command("ip link set eth0 up");
    command(&format!("ip -n {} address add 192.168.50.2/24 dev eth0", outside.name));
    command(&format!("ip -n {} -6 address add fd50::2/64 dev eth0 nodad", outside.name));
    command(&format!("ip -n {} link set eth0 up", outside.name));
    command("ip route add default via 192.168.50.2");
    command("ip -6 route add default via fd50::2");
    outside
}
