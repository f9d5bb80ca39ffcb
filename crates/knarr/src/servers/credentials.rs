//! The certificates of etcd: an authority of its own, so that a certificate for the Kubernetes API opens nothing in etcd.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use knarr_apiserver::pki::{Authority, Error, Purpose, private_directory};
use knarr_store::Tls;

/// The files of etcd's certificates below a data directory.
pub struct EtcdFiles {
    directory: PathBuf,
}

impl EtcdFiles {
    pub fn of(data: &Path) -> Self {
        Self { directory: data.join("pki/etcd") }
    }

    /// A file of the directory, such as `ca.crt`.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Creates what is missing and renews what is due. etcd reads its files again for each connection.
    pub fn ensure(&self, name: &str, address: IpAddr, now: Timestamp) -> Result<(), Error> {
        private_directory(&self.directory)?;
        let authority = Authority::open(&self.directory, "ca", "knarr-etcd-ca", now)?;
        let names = vec!["localhost".to_owned(), name.to_owned()];
        let addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), address];
        for file in ["server", "peer"] {
            let purpose = Purpose::Peer { name: name.to_owned(), names: names.clone(), addresses: addresses.clone() };
            authority.leaf(&self.directory, file, &purpose, now)?;
        }
        let client = Purpose::Client { user: "knarr-server".to_owned(), group: String::new() };
        authority.leaf(&self.directory, "client", &client, now).map(drop)
    }

    /// The credentials of this server at etcd.
    pub fn tls(&self) -> std::io::Result<Tls> {
        let read = |file: &str| std::fs::read(self.path(file));
        Ok(Tls { authority: read("ca.crt")?, identity: Some((read("client.crt")?, read("client.key")?)) })
    }
}
