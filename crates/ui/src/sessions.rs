//! Browser sessions. A signed-in client creates a code, which a browser exchanges once for the token of its session.
//!
//! Codes and tokens are kept in memory as hashes only: looking one up takes the same time whatever its text is, and
//! nobody can read them from a dump. A restart of the server ends all sessions.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use rand::RngCore as _;
use sha2::{Digest as _, Sha256};

/// How long a code can be exchanged.
pub const CODE_LIFETIME: Duration = Duration::from_secs(120);

/// How long a session lasts.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(8 * 3600);

/// What the tokens of sessions start with.
pub const TOKEN_PREFIX: &str = "knarr-ui-";

/// At most this many codes, and this many sessions: the oldest is dropped for a new one.
const MAX_ENTRIES: usize = 1000;

/// Codes and sessions with the credential each stands for.
pub struct Sessions<C> {
    codes: Mutex<Table<C>>,
    tokens: Mutex<Table<C>>,
}

type Key = [u8; 32];

struct Table<C>(HashMap<Key, (Instant, C)>);

impl<C> Default for Sessions<C> {
    fn default() -> Self {
        Sessions { codes: Mutex::new(Table(HashMap::new())), tokens: Mutex::new(Table(HashMap::new())) }
    }
}

impl<C: Clone> Sessions<C> {
    /// Creates a code that stands for a credential.
    pub fn create_code(&self, credential: C, now: Instant) -> String {
        let code = secret();
        self.codes.lock().insert(&code, now + CODE_LIFETIME, credential, now);
        code
    }

    /// Exchanges a code for the token of a new session; `None` when the code was used, has expired or never existed.
    pub fn exchange(&self, code: &str, now: Instant) -> Option<(String, C)> {
        let (end, credential) = self.codes.lock().0.remove(&key(code))?;
        if end <= now {
            return None;
        }
        let token = format!("{TOKEN_PREFIX}{}", secret());
        self.tokens.lock().insert(&token, now + SESSION_LIFETIME, credential.clone(), now);
        Some((token, credential))
    }

    /// The credential that a session's token stands for.
    pub fn credential(&self, token: &str, now: Instant) -> Option<C> {
        if !token.starts_with(TOKEN_PREFIX) {
            return None;
        }
        let tokens = self.tokens.lock();
        let (end, credential) = tokens.0.get(&key(token))?;
        (now < *end).then(|| credential.clone())
    }

    /// Ends a session.
    pub fn end(&self, token: &str) {
        self.tokens.lock().0.remove(&key(token));
    }
}

impl<C> Table<C> {
    fn insert(&mut self, secret: &str, end: Instant, credential: C, now: Instant) {
        self.0.retain(|_, (end, _)| *end > now);
        if self.0.len() >= MAX_ENTRIES {
            let oldest = self.0.iter().min_by_key(|(_, (end, _))| *end).map(|(key, _)| *key);
            oldest.map(|key| self.0.remove(&key));
        }
        self.0.insert(key(secret), (end, credential));
    }
}

fn key(secret: &str) -> Key {
    Sha256::digest(secret.as_bytes()).into()
}

fn secret() -> String {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_works_once_and_for_a_short_time() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let code = sessions.create_code("ann", start);
        let (token, user) = sessions.exchange(&code, start).unwrap();
        assert_eq!((user, sessions.credential(&token, start)), ("ann", Some("ann")));
        assert_eq!(sessions.exchange(&code, start), None, "used");
        let code = sessions.create_code("ann", start);
        assert_eq!(sessions.exchange(&code, start + CODE_LIFETIME), None, "expired");
        assert_eq!(sessions.exchange("guess", start), None);
        assert_eq!(sessions.credential(&code, start), None, "a code is no token");
    }

    #[test]
    fn a_session_ends_by_time_or_on_request() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let session = || sessions.exchange(&sessions.create_code("ann", start), start).unwrap().0;
        let (first, second) = (session(), session());
        assert_eq!(sessions.credential(&first, start + SESSION_LIFETIME - Duration::from_secs(1)), Some("ann"));
        assert_eq!(sessions.credential(&first, start + SESSION_LIFETIME), None);
        sessions.end(&second);
        assert_eq!(sessions.credential(&second, start), None);
    }

    #[test]
    fn many_codes_take_bounded_memory() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let first = sessions.create_code(0, start);
        let codes: Vec<String> = (1..=MAX_ENTRIES)
            .map(|number| sessions.create_code(number, start + Duration::from_millis(number as u64)))
            .collect();
        assert_eq!(sessions.codes.lock().0.len(), MAX_ENTRIES);
        assert_eq!(sessions.exchange(&first, start), None, "the oldest gave way");
        assert!(sessions.exchange(&codes[MAX_ENTRIES - 1], start).is_some());
    }
}
