//! Debian's etcd, started by a test on an address of the loopback network and gone with it.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use knarr_store::{Etcd, EtcdOptions, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// Long enough for many etcd servers to start at once on a slow disk.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster of etcd servers that require client certificates.
pub struct EtcdCluster {
    members: Mutex<Vec<Option<Child>>>,
    pub endpoints: Vec<String>,
    peers: Vec<String>,
    pub tls: Tls,
    directory: tempfile::TempDir,
}

impl EtcdCluster {
    pub fn start(size: usize) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let tls = make_certificates(directory.path());
        let endpoints: Vec<String> = (0..size).map(|_| format!("https://{}", own_listener())).collect();
        let peers: Vec<String> = (0..size).map(|_| format!("http://{}", own_listener())).collect();
        let cluster: Vec<String> = peers.iter().enumerate().map(|(number, peer)| format!("m{number}={peer}")).collect();
        let start =
            |number| start_member(directory.path(), number, &endpoints[number], &peers[number], &cluster.join(","));
        let members = Mutex::new((0..size).map(|number| Some(start(number))).collect());
        Self { members, endpoints, peers, tls, directory }
    }

    pub async fn connect(&self, root: &str) -> Etcd {
        self.connect_with(|| EtcdOptions { root: root.to_owned(), ..EtcdOptions::default() }).await
    }

    /// Connects with these options, once a member responds.
    pub async fn connect_with(&self, options: impl Fn() -> EtcdOptions) -> Etcd {
        let started = Instant::now();
        loop {
            match Etcd::connect(&self.endpoints, Some(self.tls.clone()), options()).await {
                Ok(store) => return store,
                Err(error) => assert!(started.elapsed() < START_TIMEOUT, "etcd does not respond: {error}"),
            }
            self.assert_running();
        }
    }

    /// Starts a member of a cluster of one again.
    #[allow(dead_code, reason = "not every test program that includes this file uses it")]
    pub fn restart(&mut self, number: usize) {
        let cluster = format!("m{number}={}", self.peers[number]);
        let (endpoint, peer) = (&self.endpoints[number], &self.peers[number]);
        let member = start_member(self.directory.path(), number, endpoint, peer, &cluster);
        self.members.lock().unwrap()[number] = Some(member);
    }

    /// Replaces the authority and all certificates; members use them when they start again.
    #[allow(dead_code, reason = "not every test program that includes this file uses it")]
    pub fn renew_certificates(&mut self) {
        self.tls = make_certificates(self.directory.path());
    }

    /// The file in which a member keeps its data.
    #[allow(dead_code, reason = "not every test program that includes this file uses it")]
    pub fn database(&self, number: usize) -> std::path::PathBuf {
        self.directory.path().join(format!("m{number}")).join("member/snap/db")
    }

    /// Panics with the log of a member that has exited.
    fn assert_running(&self) {
        for (number, member) in self.members.lock().unwrap().iter_mut().enumerate() {
            let exited = member.as_mut().and_then(|member| member.try_wait().expect("a member's state"));
            if let Some(status) = exited {
                let log = std::fs::read_to_string(self.directory.path().join(format!("m{number}.log")));
                panic!("etcd exited with {status}: {}", log.expect("its log"));
            }
        }
    }

    /// Kills a member, as `kill -9` does.
    pub fn kill(&self, number: usize) {
        if let Some(mut member) = self.members.lock().unwrap()[number].take() {
            member.kill().expect("the member is killed");
            member.wait().expect("the member is gone");
        }
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for member in self.members.get_mut().unwrap().iter_mut().flatten() {
            // It may have exited by itself; then there is nothing to do.
            member.kill().unwrap_or_default();
            member.wait().map(drop).unwrap_or_default();
        }
    }
}

fn start_member(directory: &Path, number: usize, client: &str, peer: &str, cluster: &str) -> Child {
    let file = |name: &str| directory.join(name).display().to_string();
    let log = std::fs::File::create(directory.join(format!("m{number}.log"))).expect("a log file");
    Command::new("etcd")
        .args(["--name", &format!("m{number}"), "--data-dir", &file(&format!("m{number}"))])
        .args(["--listen-client-urls", client, "--advertise-client-urls", client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", cluster, "--initial-cluster-state", "new"])
        .args(["--cert-file", &file("server.crt"), "--key-file", &file("server.key")])
        .args(["--client-cert-auth", "--trusted-ca-file", &file("ca.crt")])
        .args(["--logger", "zap", "--log-level", "error"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("etcd is needed for this test: install Debian's etcd-server package")
}

/// Writes an authority, a server's certificate and key, and returns what a client needs.
fn make_certificates(directory: &Path) -> Tls {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    parameters.distinguished_name.push(DnType::CommonName, "test authority");
    let authority = CertifiedIssuer::self_signed(parameters, key()).expect("an authority");
    // etcd also calls itself through its gateway, as a client with the server's certificate.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let server = sign(&authority, "server", &both);
    let client = sign(&authority, "client", &both[1..]);
    for (name, content) in [("ca.crt", &authority.pem()), ("server.crt", &server.0), ("server.key", &server.1)] {
        std::fs::write(directory.join(name), content).expect("a written file");
    }
    Tls { authority: authority.pem().into_bytes(), identity: Some((client.0.into_bytes(), client.1.into_bytes())) }
}

fn sign(authority: &CertifiedIssuer<'_, KeyPair>, name: &str, usages: &[ExtendedKeyUsagePurpose]) -> (String, String) {
    let names = vec![own_address().to_string(), "127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut parameters = CertificateParams::new(names).expect("names");
    parameters.extended_key_usages = usages.to_vec();
    parameters.distinguished_name.push(DnType::CommonName, name);
    let key = key();
    let certificate = parameters.signed_by(&key, authority).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

/// An address and port that no other process uses before etcd does: the address contains this process's id, and
/// ephemeral ports are higher.
fn own_listener() -> String {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    format!("{}:{}", own_address(), PORT.fetch_add(1, Ordering::Relaxed))
}

fn own_address() -> Ipv4Addr {
    let [_, first, second, third] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | first, second, third)
}
