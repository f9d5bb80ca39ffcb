//! The user that charts are installed as: a certificate of its own, so that an administrator can bind it to less than
//! `cluster-admin`. The program of Helm gets it as a file that only root can read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use knarr_apiserver::pki::{Pki, kubeconfig};

use crate::join::CHARTS;
use crate::servers::write_private;

#[derive(Clone)]
pub struct Identity {
    pki: Arc<Pki>,
    server: String,
    path: PathBuf,
}

impl Identity {
    pub fn new(pki: Arc<Pki>, server: String, directory: &Path) -> Identity {
        Identity { pki, server, path: directory.join("kubeconfig.yaml") }
    }

    /// The kubeconfig for Helm, with a certificate that is valid for a while yet.
    pub fn kubeconfig(&self, now: Timestamp) -> anyhow::Result<&Path> {
        let leaf = self.pki.client("charts", CHARTS, "", now)?;
        let text = kubeconfig(&self.server, &self.pki.authority.certificate, CHARTS, &leaf);
        if std::fs::read_to_string(&self.path).ok().as_deref() != Some(&text) {
            write_private(&self.path, text.as_bytes())?;
        }
        Ok(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn charts_have_a_user_of_their_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let pki = Pki::open(&directory.path().join("pki"), Default::default(), Timestamp::now()).expect("certificates");
        let identity =
            Identity::new(Arc::new(pki), "https://127.0.0.1:6443".to_owned(), &directory.path().join("helm"));
        let now = Timestamp::now();
        let path = identity.kubeconfig(now).expect("a kubeconfig").to_owned();
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        let certificate = std::fs::read(directory.path().join("pki/charts.crt")).expect("a certificate");
        let (_, pem) = x509_parser::pem::parse_x509_pem(&certificate).expect("PEM");
        let subject = pem.parse_x509().expect("a certificate").subject().to_string();
        assert_eq!(subject, format!("CN={CHARTS}"), "in no group");
        let first = std::fs::read_to_string(&path).expect("a kubeconfig");
        assert_eq!(std::fs::read_to_string(identity.kubeconfig(now).expect("a kubeconfig")).expect("text"), first);
        let later = now + jiff::SignedDuration::from_hours(24 * 300);
        let renewed = std::fs::read_to_string(identity.kubeconfig(later).expect("a kubeconfig")).expect("text");
        assert_ne!(renewed, first, "it is renewed before it expires");
    }
}
