//! The cluster's certificates and keys: created at the first start with mode 0600, and renewed before they expire without a
//! restart.
//!
//! In the directory: `ca` signs every serving and client certificate, `apiserver` is this server's serving certificate, `kubelet-client`
//! is how it calls kubelets, `front-proxy-client` how it calls aggregated APIs (signed by `front-proxy-ca`), `admin` is the administrator, `service-account.key` signs service-account tokens.

mod authority;
mod files;
mod kubeconfig;
mod serving;
mod tls_settings;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::authenticate::FRONT_PROXY_CLIENT;
use crate::bootstrap::KUBELET_CLIENT;

pub use authority::{Authority, Leaf, Purpose};
pub use files::private_directory;
pub use kubeconfig::kubeconfig;
pub use serving::Serving;
pub use tls_settings::{NamedCertificate, TlsSettings, TlsSettingsError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot create a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("{} is invalid: {why}", path.display())]
    Content { path: PathBuf, why: String },
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Settings(#[from] TlsSettingsError),
}

/// What the serving certificate is valid for, beside the names that every cluster uses.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl Identity {
    /// Names and addresses, as text.
    pub fn all(&self) -> impl Iterator<Item = String> {
        self.names.iter().cloned().chain(self.addresses.iter().map(IpAddr::to_string))
    }
}

pub struct Pki {
    directory: PathBuf,
    identity: Identity,
    pub authority: Authority,
    /// Signs the client certificate for aggregated API servers.
    pub front_proxy_authority: Authority,
    pub serving: Arc<Serving>,
    /// PEM of the key that signs service-account tokens (ECDSA P-256, PKCS #8).
    pub service_account_key: String,
}

impl Pki {
    /// Opens the directory, creates what is missing and renews what is due.
    pub fn open(directory: &Path, identity: Identity, now: Timestamp) -> Result<Self, Error> {
        Pki::open_with(directory, identity, TlsSettings::default(), now)
    }

    /// The same with certificates, authorities and algorithms of the administrator.
    pub fn open_with(
        directory: &Path,
        identity: Identity,
        settings: TlsSettings,
        now: Timestamp,
    ) -> Result<Self, Error> {
        files::private_directory(directory)?;
        let authority = Authority::open(directory, "ca", "knarr-ca", now)?;
        let front_proxy_authority = Authority::open(directory, "front-proxy-ca", "knarr-front-proxy-ca", now)?;
        let service_account_key = files::read_or_create(&directory.join("service-account.key"), || {
            Ok(rcgen::KeyPair::generate()?.serialize_pem())
        })?;
        let leaf = authority.leaf(directory, "apiserver", &serving_purpose(&identity), now)?;
        let serving = Arc::new(Serving::new(&leaf, &authority, &front_proxy_authority, settings)?);
        let directory = directory.to_owned();
        let pki = Pki { directory, identity, authority, front_proxy_authority, serving, service_account_key };
        pki.renew(now)?;
        Ok(pki)
    }

    /// What the serving certificate is valid for, beside the names that every cluster uses.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Renews every certificate that is due; new connections use the new ones at once.
    pub fn renew(&self, now: Timestamp) -> Result<(), Error> {
        let leaf = self.authority.leaf(&self.directory, "apiserver", &serving_purpose(&self.identity), now)?;
        self.serving.set_certificate(&leaf)?;
        self.admin(now)?;
        self.kubelet_client(now)?;
        self.front_proxy_client(now)?;
        Ok(())
    }

    /// The administrator's client certificate.
    pub fn admin(&self, now: Timestamp) -> Result<Leaf, Error> {
        self.client("admin", "kubernetes-admin", "system:masters", now)
    }

    /// The client certificate for kubelets. Its user may do nothing else, so that a node cannot gain more from it.
    pub fn kubelet_client(&self, now: Timestamp) -> Result<Leaf, Error> {
        self.client("kubelet-client", KUBELET_CLIENT, "", now)
    }

    /// The client certificate for aggregated API servers.
    pub fn front_proxy_client(&self, now: Timestamp) -> Result<Leaf, Error> {
        let purpose = Purpose::Client { user: FRONT_PROXY_CLIENT.into(), group: String::new() };
        self.front_proxy_authority.leaf(&self.directory, "front-proxy-client", &purpose, now)
    }

    /// The client certificate stored under a file name, for a user in one group.
    pub fn client(&self, file: &str, user: &str, group: &str, now: Timestamp) -> Result<Leaf, Error> {
        let purpose = Purpose::Client { user: user.into(), group: group.into() };
        self.authority.leaf(&self.directory, file, &purpose, now)
    }
}

fn serving_purpose(identity: &Identity) -> Purpose {
    let mut names: Vec<String> =
        ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned).into();
    names.push("kubernetes.default.svc.cluster.local".to_owned());
    names.extend(identity.names.iter().cloned());
    let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
    addresses.extend(identity.addresses.iter().copied());
    names.dedup();
    addresses.sort();
    addresses.dedup();
    Purpose::Serving { name: "kube-apiserver".into(), names, addresses }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn files_are_private_and_renewed_when_due() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pki");
        let open = |now: &str| Pki::open(&path, Identity::default(), at(now)).unwrap();
        let first = open("2026-01-01T00:00:00Z");
        let admin = first.admin(at("2026-01-01T00:00:00Z")).unwrap().certificate;
        for name in ["ca.key", "service-account.key", "apiserver.key", "admin.key"] {
            let mode = std::fs::metadata(path.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let reopened = open("2026-02-01T00:00:00Z");
        assert_eq!(reopened.authority.certificate, first.authority.certificate);
        assert_eq!(reopened.service_account_key, first.service_account_key);
        assert_eq!(reopened.admin(at("2026-02-01T00:00:00Z")).unwrap().certificate, admin);
        assert_ne!(open("2026-11-01T00:00:00Z").admin(at("2026-11-01T00:00:00Z")).unwrap().certificate, admin);
    }

    #[test]
    fn the_kubelet_client_certificate_is_not_an_administrators() {
        let directory = tempfile::tempdir().unwrap();
        let now = at("2026-01-01T00:00:00Z");
        let pki = Pki::open(directory.path(), Identity::default(), now).unwrap();
        let groups = |leaf: &Leaf| -> Vec<String> {
            let (_, pem) = x509_parser::pem::parse_x509_pem(leaf.certificate.as_bytes()).unwrap();
            let parsed = pem.parse_x509().unwrap();
            parsed.subject().iter_organization().map(|group| group.as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(groups(&pki.kubelet_client(now).unwrap()), Vec::<String>::new());
        // A certificate of an earlier version is replaced even if it is not due.
        pki.client("kubelet-client", KUBELET_CLIENT, "system:masters", now).unwrap();
        assert_eq!(groups(&pki.kubelet_client(now).unwrap()), Vec::<String>::new());
        assert_eq!(groups(&pki.admin(now).unwrap()), ["system:masters"]);
    }

    #[test]
    fn only_the_administrators_certificate_is_in_masters() {
        let directory = tempfile::tempdir().unwrap();
        Pki::open(directory.path(), Identity::default(), at("2026-01-01T00:00:00Z")).unwrap();
        let mut masters = Vec::new();
        let mut count = 0;
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "crt") {
                continue;
            }
            count += 1;
            let (_, pem) = x509_parser::pem::parse_x509_pem(&std::fs::read(&path).unwrap()).unwrap();
            let certificate = pem.parse_x509().unwrap();
            if certificate.subject().iter_organization().any(|group| group.as_str() == Ok("system:masters")) {
                masters.push(path.file_name().unwrap().to_owned());
            }
        }
        assert!(count >= 6, "{count}");
        assert_eq!(masters, ["admin.crt"]);
    }

    /// CVE-2024-9486: nothing secret is the same in two clusters.
    #[test]
    fn two_clusters_share_no_secret() {
        let now = at("2026-01-01T00:00:00Z");
        let files = |directory: &Path| -> Vec<(std::ffi::OsString, Vec<u8>)> {
            Pki::open(directory, Identity::default(), now).unwrap();
            let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
            entries.map(|path| (path.file_name().unwrap().to_owned(), std::fs::read(&path).unwrap())).collect()
        };
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (one, other) = (files(one.path()), files(other.path()));
        assert!(one.len() >= 11, "{}", one.len());
        for (name, content) in &one {
            assert!(other.iter().all(|(_, theirs)| theirs != content), "{name:?}");
        }
    }

    #[test]
    fn a_new_name_causes_a_new_serving_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let now = at("2026-01-01T00:00:00Z");
        let read = || std::fs::read_to_string(directory.path().join("apiserver.crt")).unwrap();
        Pki::open(directory.path(), Identity::default(), now).unwrap();
        let before = read();
        let identity = Identity { names: vec!["node.example".into()], addresses: vec![] };
        Pki::open(directory.path(), identity, now).unwrap();
        assert_ne!(before, read());
    }
}
