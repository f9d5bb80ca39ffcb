//! Debian's etcd, started by a test on ephemeral ports of the loopback interface and gone with it.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use knarr_store::{Etcd, EtcdOptions, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A cluster of etcd servers that ask for client certificates.
pub struct EtcdCluster {
    members: Vec<Option<Child>>,
    pub endpoints: Vec<String>,
    pub tls: Tls,
    _directory: tempfile::TempDir,
}

impl EtcdCluster {
    pub fn start(size: usize) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let tls = make_certificates(directory.path());
        let ports = free_ports(2 * size);
        let (clients, peers) = ports.split_at(size);
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(number, port)| format!("m{number}=http://127.0.0.1:{port}")).collect();
        let endpoints: Vec<String> = clients.iter().map(|port| format!("https://127.0.0.1:{port}")).collect();
        let members = (0..size)
            .map(|number| {
                let peer = format!("http://127.0.0.1:{}", peers[number]);
                Some(start_member(directory.path(), number, &endpoints[number], &peer, &cluster.join(",")))
            })
            .collect();
        Self { members, endpoints, tls, _directory: directory }
    }

    pub async fn connect(&self, root: &str) -> Etcd {
        let options = EtcdOptions { root: root.to_owned(), ..EtcdOptions::default() };
        Etcd::connect(&self.endpoints, Some(self.tls.clone()), options).await.expect("etcd answers")
    }

    /// Kills a member, as `kill -9` does.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut member) = self.members[number].take() {
            member.kill().expect("the member is killed");
            member.wait().expect("the member is gone");
        }
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            // It may have ended by itself; then there is nothing left to do.
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

/// Writes an authority, a server's certificate and key, and answers what a client needs.
fn make_certificates(directory: &Path) -> Tls {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    parameters.distinguished_name.push(DnType::CommonName, "test authority");
    let authority = CertifiedIssuer::self_signed(parameters, key()).expect("an authority");
    // etcd also asks itself through its gateway, as a client with the server's certificate.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let server = sign(&authority, "server", &both);
    let client = sign(&authority, "client", &both[1..]);
    for (name, content) in [("ca.crt", &authority.pem()), ("server.crt", &server.0), ("server.key", &server.1)] {
        std::fs::write(directory.join(name), content).expect("a written file");
    }
    Tls { authority: authority.pem().into_bytes(), identity: Some((client.0.into_bytes(), client.1.into_bytes())) }
}

fn sign(authority: &CertifiedIssuer<'_, KeyPair>, name: &str, usages: &[ExtendedKeyUsagePurpose]) -> (String, String) {
    let mut parameters = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
    parameters.extended_key_usages = usages.to_vec();
    parameters.distinguished_name.push(DnType::CommonName, name);
    let key = key();
    let certificate = parameters.signed_by(&key, authority).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

/// Ports that are free now. All are held at once, so that they differ.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    held.iter().map(|listener| listener.local_addr().expect("its address").port()).collect()
}
