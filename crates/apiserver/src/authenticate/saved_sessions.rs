//! Sessions that outlive the process: users stay signed in to the page while the server restarts.
//!
//! A file keeps the credential of each session, encrypted with a key that is derived from the session's token. Only the browser
//! has the token, so that the file gives nobody a session. A restored credential is verified for each request, like all others.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use knarr_ui::{MAX_PER_OWNER, SESSION_LIFETIME};
use parking_lot::Mutex;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::connection::{ClientConnection, CurrentAuthorities};
use super::session::{Credential, Sessions};
use crate::encrypt::Algorithm;

/// The maximum number of saved sessions, the same as in memory.
const MAX_SAVED: usize = 4000;

pub struct SavedSessions {
    path: PathBuf,
    clients: CurrentAuthorities,
    saved: Mutex<BTreeMap<String, Saved>>,
}

/// A session in the file, under the hash of its token.
#[derive(Clone, Serialize, Deserialize)]
struct Saved {
    owner: String,
    /// Seconds since 1970.
    expires: u64,
    /// The encrypted credential.
    sealed: String,
}

/// The plain text of an encrypted credential: a token, or certificates.
#[derive(Serialize, Deserialize)]
struct Plain {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    certificates: Vec<String>,
    impersonated: Vec<(String, String)>,
}

impl SavedSessions {
    /// The sessions in a file; none if it does not exist or cannot be read.
    pub fn open(path: &Path, clients: CurrentAuthorities) -> SavedSessions {
        let saved = match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "cannot read the sessions of the page: users sign in again");
                BTreeMap::new()
            }),
            Err(_) => BTreeMap::new(),
        };
        SavedSessions { path: path.to_owned(), clients, saved: Mutex::new(saved) }
    }

    /// Saves a new session. Sessions of users whom a front proxy names are not saved: their identity cannot be verified again.
    pub fn add(&self, token: &str, owner: &str, credential: &Credential, now: UnixTime) {
        let Some(sealed) = seal(token, credential) else { return };
        let saved = Saved { owner: owner.to_owned(), expires: now.as_secs() + SESSION_LIFETIME.as_secs(), sealed };
        let mut all = self.saved.lock();
        all.retain(|_, saved| saved.expires > now.as_secs());
        drop_oldest_of(&mut all, owner);
        if all.len() < MAX_SAVED {
            all.insert(key(token), saved);
            self.write(&all);
        }
    }

    pub fn remove(&self, token: &str) {
        let mut all = self.saved.lock();
        if all.remove(&key(token)).is_some() {
            self.write(&all);
        }
    }

    /// Continues the session of a token that the previous process created, if there is one.
    pub fn restore(&self, sessions: &Sessions, token: &str, now: UnixTime) -> Option<Credential> {
        let saved = self.saved.lock().get(&key(token)).cloned()?;
        let left = saved.expires.checked_sub(now.as_secs()).filter(|seconds| *seconds > 0)?;
        let credential = self.unseal(token, &saved.sealed, now)?;
        let end = Instant::now() + Duration::from_secs(left).min(SESSION_LIFETIME);
        sessions.restore(token, &saved.owner, credential.clone(), end);
        Some(credential)
    }

    fn unseal(&self, token: &str, sealed: &str, now: UnixTime) -> Option<Credential> {
        let sealed = STANDARD.decode(sealed).ok()?;
        let plain = Algorithm::AesGcm.decrypt(&sealing_key(token), &sealed, &key(token))?;
        let plain: Plain = serde_json::from_slice(&plain).ok()?;
        let mut impersonated = HeaderMap::new();
        for (name, value) in &plain.impersonated {
            impersonated.append(HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
        }
        let impersonated = Arc::new(impersonated);
        if let Some(token) = plain.token {
            return Some(Credential::Token(token.into(), impersonated));
        }
        let chain: Result<Vec<_>, _> =
            plain.certificates.iter().map(|one| STANDARD.decode(one).map(CertificateDer::from)).collect();
        let connection = ClientConnection::new(self.clients.clone(), &chain.ok()?, now);
        // With no valid certificate left, requests of the session would be anonymous.
        connection.has_certificate().then(|| Credential::Certificate(Arc::new(connection), impersonated))
    }

    fn write(&self, all: &BTreeMap<String, Saved>) {
        if let Err(error) = self.replace(all) {
            tracing::warn!(%error, path = %self.path.display(), "cannot save the sessions of the page: they end with this process");
        }
    }

    fn replace(&self, all: &BTreeMap<String, Saved>) -> std::io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(all)?)?;
        std::fs::rename(&new, &self.path)
    }
}

/// Removes the oldest session of an owner who has as many as memory holds for one owner. Otherwise an owner could fill the file by
/// signing in repeatedly, and restore sessions that memory has dropped.
fn drop_oldest_of(all: &mut BTreeMap<String, Saved>, owner: &str) {
    let own = || all.iter().filter(|(_, saved)| saved.owner == owner);
    if own().count() >= MAX_PER_OWNER
        && let Some(oldest) = own().min_by_key(|(_, saved)| saved.expires).map(|(key, _)| key.clone())
    {
        all.remove(&oldest);
    }
}

fn seal(token: &str, credential: &Credential) -> Option<String> {
    let (secret, certificates, impersonated) = match credential {
        Credential::Token(secret, impersonated) => (Some(secret.to_string()), Vec::new(), impersonated),
        Credential::Certificate(connection, impersonated) => {
            (None, connection.chain().iter().map(|one| STANDARD.encode(one)).collect(), impersonated)
        }
        Credential::User(_) => return None,
    };
    let text = |(name, value): (&HeaderName, &HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_owned()));
    let impersonated = impersonated.iter().map(text).collect::<Option<_>>()?;
    let plain = serde_json::to_vec(&Plain { token: secret, certificates, impersonated }).ok()?;
    Some(STANDARD.encode(Algorithm::AesGcm.encrypt(&sealing_key(token), &plain, &key(token))?))
}

fn key(token: &str) -> String {
    STANDARD.encode(Sha256::digest(token.as_bytes()))
}

/// Tokens are 32 random bytes: a hash of one is as good a key.
fn sealing_key(token: &str) -> [u8; 32] {
    Sha256::digest(format!("seal {token}").as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject as _;

    use super::*;
    use crate::pki::{Identity, Pki};

    #[test]
    fn a_session_is_restored_with_its_credential_until_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let issued = jiff::Timestamp::now();
        let pki =
            Pki::open_with(&directory.path().join("pki"), Identity::default(), Default::default(), issued).unwrap();
        let path = directory.path().join("sessions.json");
        let now = UnixTime::now();
        let open = || SavedSessions::open(&path, pki.serving.clients());
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", HeaderValue::from_static("ann"));
        let admin = pki.admin(issued).unwrap();
        let chain = CertificateDer::pem_slice_iter(admin.certificate.as_bytes());
        let chain: Vec<_> = chain.collect::<Result<_, _>>().unwrap();
        let connection = ClientConnection::new(pki.serving.clients(), &chain, now);
        let first = open();
        first.add("knarr-ui-a", "ann", &Credential::Token("secret".into(), Arc::new(headers)), now);
        first.add("knarr-ui-b", "admin", &Credential::Certificate(Arc::new(connection), Default::default()), now);
        first.add("knarr-ui-c", "proxied", &Credential::User(Default::default()), now);
        first.add("knarr-ui-d", "gone", &Credential::Token("other".into(), Default::default()), now);
        first.remove("knarr-ui-d");

        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("secret") && !text.contains("knarr-ui"), "{text}");
        let (second, sessions) = (open(), Sessions::default());
        let restored = |token: &str, now| second.restore(&sessions, token, now);
        let Some(Credential::Token(secret, headers)) = restored("knarr-ui-a", now) else { panic!("no token") };
        assert_eq!((&*secret, headers["impersonate-user"].as_bytes()), ("secret", &b"ann"[..]));
        assert!(matches!(restored("knarr-ui-b", now), Some(Credential::Certificate(..))));
        assert!(sessions.credential("knarr-ui-b", Instant::now()).is_some(), "it is in memory again");
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + SESSION_LIFETIME);
        for (token, now) in [("knarr-ui-c", now), ("knarr-ui-d", now), ("knarr-ui-e", now), ("knarr-ui-a", later)] {
            assert!(restored(token, now).is_none(), "{token}");
        }
    }

    #[test]
    fn nobody_fills_the_file_of_sessions() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(&directory.path().join("pki"), Identity::default(), jiff::Timestamp::now()).unwrap();
        let saved = SavedSessions::open(&directory.path().join("sessions.json"), pki.serving.clients());
        let credential = Credential::Token("secret".into(), Default::default());
        let at = |second| UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000 + second));
        saved.add("knarr-ui-other", "ann", &credential, at(0));
        let count = MAX_PER_OWNER as u64 + 2;
        for number in 0..count {
            saved.add(&format!("knarr-ui-{number}"), "eve", &credential, at(number));
        }
        assert_eq!(saved.saved.lock().len(), MAX_PER_OWNER + 1);
        let restored = |name: String| saved.restore(&Sessions::default(), &format!("knarr-ui-{name}"), at(count));
        assert!(restored("other".to_owned()).is_some());
        for (number, is_there) in [(0, false), (1, false), (2, true), (count - 1, true)] {
            assert_eq!(restored(number.to_string()).is_some(), is_there, "{number}");
        }
    }

    #[test]
    fn a_file_that_is_no_list_of_sessions_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open_with(
            &directory.path().join("pki"),
            Identity::default(),
            Default::default(),
            jiff::Timestamp::now(),
        );
        let path = directory.path().join("sessions.json");
        std::fs::write(&path, "nonsense").unwrap();
        let saved = SavedSessions::open(&path, pki.unwrap().serving.clients());
        assert!(saved.saved.lock().is_empty());
    }
}
