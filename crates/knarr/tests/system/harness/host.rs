//! Simulated hosts: network namespaces on a common switch, without access to the outside.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Servers on these hosts respond faster.
const TIMEOUT: Duration = Duration::from_secs(2);

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs a command, which must succeed, and returns its output.
pub fn run(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A name that no other test on this host uses, short enough for an interface.
fn unique(prefix: &str) -> String {
    format!("{prefix}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A bridge in its own namespace, to which hosts are connected.
pub struct Switch {
    namespace: String,
}

/// A network namespace connected to a switch.
pub struct TestHost {
    pub name: String,
    /// Empty if the host has no network.
    pub address: String,
}

impl Switch {
    pub fn new() -> Self {
        let namespace = unique("kns");
        run(&format!("ip netns add {namespace}"));
        let switch = Switch { namespace };
        switch.ip("link set lo up");
        switch.ip("link add br0 type bridge");
        switch.ip("link set br0 up");
        // Hosts have a default route that leads here, and no further.
        switch.ip("address add 10.77.0.1/16 dev br0");
        switch.ip("-6 address add fd77::1/64 dev br0 nodad");
        switch
    }

    fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.namespace));
    }

    /// A new host on its own subnet, 10.78.`number`.0/24 and fd78:`number`::/64: to all others it is behind a router, which is
    /// the switch.
    pub fn plug_far(&self, number: u8) -> TestHost {
        let host = self.host(format!("10.78.{number}.2"));
        let port = format!("f{number}");
        self.ip(&format!("link add {port} type veth peer name eth0 netns {}", host.name));
        self.ip(&format!("address add 10.78.{number}.1/24 dev {port}"));
        self.ip(&format!("-6 address add fd78:{number}::1/64 dev {port} nodad"));
        self.ip(&format!("link set {port} up"));
        for setting in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            run(&format!("nsenter --net=/run/netns/{} sysctl -qw net.{setting}=1", self.namespace));
        }
        host.ip(&format!("address add {}/24 dev eth0", host.address));
        host.ip(&format!("-6 address add fd78:{number}::2/64 dev eth0 nodad"));
        host.ip("link set eth0 up");
        host.ip(&format!("route add default via 10.78.{number}.1"));
        host.ip(&format!("-6 route add default via fd78:{number}::1"));
        host
    }

    fn host(&self, address: String) -> TestHost {
        let name = unique("knm");
        run(&format!("ip netns add {name}"));
        let host = TestHost { name, address };
        host.ip("link set lo up");
        host
    }

    /// A new host with only loopback.
    pub fn leave_unplugged(&self) -> TestHost {
        self.host(String::new())
    }

    /// A new host with the addresses 10.77.0.`number` and fd77::`number`.
    pub fn plug(&self, number: u8) -> TestHost {
        let host = self.host(format!("10.77.0.{number}"));
        let port = format!("p{number}");
        self.ip(&format!("link add {port} type veth peer name eth0 netns {}", host.name));
        self.ip(&format!("link set {port} master br0 up"));
        host.address_interface(number);
        host
    }
}

impl Switch {
    /// A new host with the addresses of `plug`, whose interface `connect` creates: it is given the namespaces of the switch
    /// and of the host, and creates the interfaces `t{number}` and `eth0` in them.
    pub fn plug_with<T>(&self, number: u8, connect: impl FnOnce(PathBuf, PathBuf) -> T) -> (TestHost, T) {
        let host = self.host(format!("10.77.0.{number}"));
        let connected = connect(PathBuf::from("/run/netns").join(&self.namespace), host.path());
        self.ip(&format!("link set t{number} master br0 up"));
        host.address_interface(number);
        (host, connected)
    }

    /// Plugs the cable of host `number` in or out.
    pub fn set_link(&self, number: u8, is_up: bool) {
        self.ip(&format!("link set p{number} {}", if is_up { "up" } else { "down" }));
    }
}

impl TestHost {
    fn address_interface(&self, number: u8) {
        self.ip(&format!("address add 10.77.0.{number}/16 dev eth0"));
        self.ip(&format!("-6 address add fd77::{number}/64 dev eth0 nodad"));
        self.ip("link set eth0 up");
        self.ip("route add default via 10.77.0.1");
        self.ip("-6 route add default via fd77::1");
    }

    fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.name));
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// A command that runs on this host. Mounts are shared with the test: cgroups must be visible.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg(program).stdin(Stdio::null());
        command
    }

    pub fn output(&self, words: &[&str]) -> Output {
        self.command(words[0]).args(&words[1..]).output().expect("nsenter runs")
    }

    /// The output of a command on this host, which must succeed.
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs `work` on a thread in this host's network.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(self.path()).expect("a namespace");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("it is entered");
                work()
            });
            thread.join().expect("the work ends")
        })
    }

    /// The successful response of an HTTP server to this host: `http://10.0.0.1:80/path`.
    pub fn fetch(&self, url: &str) -> Option<String> {
        let (host, path) = url.trim_start_matches("http://").split_once('/')?;
        let address = host.parse().or_else(|_| format!("{host}:80").parse::<SocketAddr>()).ok()?;
        let response = self.within(|| get(address, path)).ok()?;
        let (head, body) = response.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| body.trim().to_owned())
    }
}

/// A whole response, head and body.
fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /{path} HTTP/1.0\r\nhost: {address}\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).status();
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}
