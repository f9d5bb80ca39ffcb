//! Client certificates, verified for each request: they expire, and authorities are removed from their file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_identity::Authorities;
use parking_lot::{Mutex, RwLock};
use rustls_pki_types::{CertificateDer, UnixTime};

/// How often the file of the authorities is read.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why the authorities in a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {message}")]
pub struct AuthoritiesError {
    path: PathBuf,
    message: String,
}

/// The authorities of client certificates at present.
#[derive(Clone)]
pub struct ClientAuthorities(Arc<RwLock<Arc<Authorities>>>);

impl ClientAuthorities {
    pub fn new(authorities: Authorities) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(authorities))))
    }

    pub fn from_file(path: &Path) -> Result<Self, AuthoritiesError> {
        let pem = std::fs::read(path).map_err(|error| failed(path, &error))?;
        parse(path, &pem).map(Self::new)
    }

    pub fn current(&self) -> Arc<Authorities> {
        self.0.read().clone()
    }

    /// Reads the file again when it changes. While it cannot be used, the previous authorities are.
    pub async fn watch(self, path: PathBuf) {
        // The file may have changed since it was read for the first time.
        let mut used: Option<Vec<u8>> = None;
        loop {
            match std::fs::read(&path) {
                Ok(found) if used.as_ref() == Some(&found) => {}
                Ok(found) => match parse(&path, &found) {
                    Ok(authorities) => {
                        *self.0.write() = Arc::new(authorities);
                        if used.replace(found).is_some() {
                            tracing::info!(path = %path.display(), "reloaded the authorities of client certificates");
                        }
                    }
                    Err(error) => tracing::warn!(%error, "cannot use the authorities of client certificates"),
                },
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot read the authorities of clients"),
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

fn parse(path: &Path, pem: &[u8]) -> Result<Authorities, AuthoritiesError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Authorities::from_pem(pem, &provider).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> AuthoritiesError {
    AuthoritiesError { path: path.to_path_buf(), message: error.to_string() }
}

/// The certificate that a connection's client presented.
pub struct ClientCertificate {
    authorities: Option<ClientAuthorities>,
    chain: Vec<CertificateDer<'static>>,
    /// Whether it was good, with the authorities that said so.
    verified: Mutex<Option<(Arc<Authorities>, bool)>>,
    /// Until then the result of the verification is valid.
    good_until: Option<UnixTime>,
}

impl ClientCertificate {
    pub fn new(authorities: Option<ClientAuthorities>, chain: &[CertificateDer<'static>]) -> Self {
        let good_until = knarr_identity::valid_until(chain);
        Self { authorities, chain: chain.to_vec(), verified: Mutex::default(), good_until }
    }

    /// The client's certificate while it is valid. A connection or a resumed session may outlive it.
    pub fn certificate(&self, now: UnixTime) -> Option<&CertificateDer<'static>> {
        let (leaf, authorities) = (self.chain.first()?, self.authorities.as_ref()?);
        self.is_good(authorities.current(), now).then_some(leaf)
    }

    fn is_good(&self, current: Arc<Authorities>, now: UnixTime) -> bool {
        let mut verified = self.verified.lock();
        if let Some((authorities, is_good)) = &*verified
            && Arc::ptr_eq(authorities, &current)
            && self.good_until.is_some_and(|end| now <= end)
        {
            return *is_good;
        }
        let is_good = current.verify(&self.chain, now).is_ok();
        *verified = Some((current, is_good));
        is_good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        /// An authority in PEM, and a certificate that it signed, valid until the eleventh of January 2026.
        pem: String,
        chain: [CertificateDer<'static>; 1],
        /// The same, signed by itself.
        strange: [CertificateDer<'static>; 1],
    }

    fn fixture() -> Fixture {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut authority = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = authority.self_signed(&key).expect("an authority").pem();
        let issuer = rcgen::Issuer::new(authority, key);
        let mut client = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
        client.not_before = rcgen::date_time_ymd(2026, 1, 1);
        client.not_after = rcgen::date_time_ymd(2026, 1, 11);
        let own = rcgen::KeyPair::generate().expect("a key");
        let chain = [client.signed_by(&own, &issuer).expect("a certificate").der().clone()];
        let strange = [client.self_signed(&own).expect("a certificate").der().clone()];
        Fixture { pem, chain, strange }
    }

    /// A day of January 2026.
    fn at(day: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs((20_453 + day) * 24 * 3600))
    }

    #[test]
    fn a_client_certificate_is_good_until_it_expires() {
        let Fixture { pem, chain, strange } = fixture();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca.crt");
        std::fs::write(&path, pem).expect("written");
        let authorities = ClientAuthorities::from_file(&path).expect("authorities");
        let presented = |authorities: Option<&ClientAuthorities>, chain: &[CertificateDer<'static>]| {
            ClientCertificate::new(authorities.cloned(), chain)
        };
        let good = presented(Some(&authorities), &chain);
        assert!(good.certificate(at(2)).is_some());
        assert!(good.certificate(at(12)).is_none());
        assert!(presented(Some(&authorities), &strange).certificate(at(2)).is_none());
        assert!(presented(None, &chain).certificate(at(2)).is_none());
        assert!(presented(Some(&authorities), &[]).certificate(at(2)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_certificate_is_good_while_its_authority_is_in_the_file() {
        let (own, other) = (fixture(), fixture());
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca.crt");
        std::fs::write(&path, &own.pem).expect("written");
        let authorities = ClientAuthorities::from_file(&path).expect("authorities");
        let watching = tokio::spawn(authorities.clone().watch(path.clone()));
        let open = [&own, &other].map(|one| ClientCertificate::new(Some(authorities.clone()), &one.chain));
        for (text, expected) in [
            (own.pem.clone(), [true, false]),
            (other.pem.clone(), [false, true]),
            // A file that cannot be used changes nothing.
            (String::new(), [false, true]),
            (own.pem.clone() + &other.pem, [true, true]),
        ] {
            std::fs::write(&path, &text).expect("written");
            tokio::time::sleep(CHECK_INTERVAL * 2).await;
            // The second time from what is known.
            for _ in 0..2 {
                assert_eq!([0, 1].map(|one: usize| open[one].certificate(at(2)).is_some()), expected, "{text}");
            }
        }
        watching.abort();
    }
}
