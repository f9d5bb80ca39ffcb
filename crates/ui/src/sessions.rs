//! Browser sessions. A signed-in client creates a code, which a browser exchanges once for the token of its session.
//!
//! A session can forward a port of a Service or pod as a link: the link contains a key of its own, which is good for that
//! port only, and ends with the session.
//!
//! Codes, tokens and keys are kept in memory as hashes only: looking one up takes the same time whatever its text is, and
//! nobody can read them from a dump. Sessions outlive the process only where their owner restores them.

use std::collections::HashMap;
use std::sync::Arc;
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

/// At most this many codes, sessions and forwarded ports: the oldest is dropped for a new one.
const MAX_ENTRIES: usize = 4000;

/// At most this many of one owner, so that nobody ends the sessions of others by creating many.
pub const MAX_PER_OWNER: usize = 40;

/// Codes and sessions with the credential each stands for.
pub struct Sessions<C> {
    codes: Mutex<Table<C>>,
    tokens: Mutex<Table<C>>,
    forwards: Mutex<Table<Forward>>,
}

type Key = [u8; 32];

/// Values with the time each one ends.
struct Table<V>(HashMap<Key, Entry<V>>);

#[derive(Clone)]
struct Entry<V> {
    end: Instant,
    /// Whom the entry counts for.
    owner: Arc<str>,
    value: V,
}

/// A forwarded port: the session that it belongs to, and the path that it leads to.
#[derive(Clone)]
struct Forward {
    session: Key,
    path: Arc<str>,
}

impl<C> Default for Sessions<C> {
    fn default() -> Self {
        Sessions {
            codes: Mutex::new(Table(HashMap::new())),
            tokens: Mutex::new(Table(HashMap::new())),
            forwards: Mutex::new(Table(HashMap::new())),
        }
    }
}

impl<C: Clone> Sessions<C> {
    /// Creates a code that stands for a credential. `user` is the name of the user who asks for it.
    pub fn create_code(&self, user: &str, credential: C, now: Instant) -> String {
        let code = secret();
        let entry = Entry { end: now + CODE_LIFETIME, owner: owner(user).into(), value: credential };
        self.codes.lock().insert(&code, entry, now);
        code
    }

    /// Exchanges a code for the token of a new session; `None` when the code was used, has expired or never existed.
    pub fn exchange(&self, code: &str, now: Instant) -> Option<(String, C)> {
        let Entry { end, owner, value: credential } = self.codes.lock().0.remove(&key(code))?;
        if end <= now {
            return None;
        }
        let token = format!("{TOKEN_PREFIX}{}", secret());
        let entry = Entry { end: now + SESSION_LIFETIME, owner, value: credential.clone() };
        self.tokens.lock().insert(&token, entry, now);
        Some((token, credential))
    }

    /// The credential that a session's token stands for.
    pub fn credential(&self, token: &str, now: Instant) -> Option<C> {
        if !token.starts_with(TOKEN_PREFIX) {
            return None;
        }
        self.tokens.lock().get(&key(token), now)
    }

    /// Continues a session that a previous process created.
    pub fn restore(&self, token: &str, owner: &str, credential: C, end: Instant) {
        let entry = Entry { end, owner: owner.into(), value: credential };
        self.tokens.lock().insert(token, entry, Instant::now());
    }

    /// Whom a session counts for.
    pub fn owner(&self, token: &str) -> Option<Arc<str>> {
        Some(self.tokens.lock().0.get(&key(token))?.owner.clone())
    }

    /// A key that leads to a path with the credential of a session; `None` when there is no such session.
    pub fn create_forward(&self, token: &str, path: &str, now: Instant) -> Option<String> {
        let owner = self.tokens.lock().entry(&key(token), now)?.owner.clone();
        let secret = secret();
        let forward = Forward { session: key(token), path: path.into() };
        self.forwards.lock().insert(&secret, Entry { end: now + SESSION_LIFETIME, owner, value: forward }, now);
        Some(secret)
    }

    /// The path that a key leads to, and the credential of its session, as long as that lasts.
    pub fn forward(&self, secret: &str, now: Instant) -> Option<(Arc<str>, C)> {
        let forward = self.forwards.lock().get(&key(secret), now)?;
        let credential = self.tokens.lock().get(&forward.session, now)?;
        Some((forward.path, credential))
    }

    /// Ends a session.
    pub fn end(&self, token: &str) {
        self.tokens.lock().0.remove(&key(token));
    }
}

impl<V: Clone> Table<V> {
    fn entry(&self, key: &Key, now: Instant) -> Option<&Entry<V>> {
        self.0.get(key).filter(|entry| now < entry.end)
    }

    fn get(&self, key: &Key, now: Instant) -> Option<V> {
        Some(self.entry(key, now)?.value.clone())
    }

    fn insert(&mut self, secret: &str, entry: Entry<V>, now: Instant) {
        self.0.retain(|_, entry| entry.end > now);
        let is_own = |other: &Entry<V>| other.owner == entry.owner;
        if self.0.values().filter(|other| is_own(other)).count() >= MAX_PER_OWNER {
            self.drop_oldest(is_own);
        } else if self.0.len() >= MAX_ENTRIES {
            self.drop_oldest(|_| true);
        }
        self.0.insert(key(secret), entry);
    }

    fn drop_oldest(&mut self, is_candidate: impl Fn(&Entry<V>) -> bool) {
        let candidates = self.0.iter().filter(|(_, entry)| is_candidate(entry));
        let oldest = candidates.min_by_key(|(_, entry)| entry.end).map(|(key, _)| *key);
        oldest.map(|key| self.0.remove(&key));
    }
}

/// Whoever may create service accounts of a namespace can create any number: all of them are one owner.
fn owner(user: &str) -> &str {
    match user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':')) {
        Some((_, name)) => &user[..user.len() - name.len()],
        None => user,
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
        let code = sessions.create_code("ann", "ann", start);
        let (token, user) = sessions.exchange(&code, start).unwrap();
        assert_eq!((user, sessions.credential(&token, start)), ("ann", Some("ann")));
        assert_eq!(sessions.exchange(&code, start), None, "used");
        let code = sessions.create_code("ann", "ann", start);
        assert_eq!(sessions.exchange(&code, start + CODE_LIFETIME), None, "expired");
        assert_eq!(sessions.exchange("guess", start), None);
        assert_eq!(sessions.credential(&code, start), None, "a code is no token");
    }

    #[test]
    fn a_session_ends_by_time_or_on_request() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let session = || sessions.exchange(&sessions.create_code("ann", "ann", start), start).unwrap().0;
        let (first, second) = (session(), session());
        assert_eq!(sessions.credential(&first, start + SESSION_LIFETIME - Duration::from_secs(1)), Some("ann"));
        assert_eq!(sessions.credential(&first, start + SESSION_LIFETIME), None);
        sessions.end(&second);
        assert_eq!(sessions.credential(&second, start), None);
    }

    #[test]
    fn a_forwarded_port_ends_with_its_session() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let (token, _) = sessions.exchange(&sessions.create_code("ann", "ann", start), start).unwrap();
        let link = sessions.create_forward(&token, "/web", start).unwrap();
        assert_eq!(sessions.forward(&link, start), Some(("/web".into(), "ann")));
        assert_eq!(sessions.forward(&token, start), None, "a token is no link");
        assert_eq!(sessions.credential(&link, start), None, "a link is no token");
        assert_eq!(sessions.create_forward("knarr-ui-guess", "/web", start), None);
        assert_eq!(sessions.forward(&link, start + SESSION_LIFETIME), None);
        sessions.end(&token);
        assert_eq!(sessions.forward(&link, start), None);
    }

    #[test]
    fn many_codes_take_bounded_memory() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let first = sessions.create_code("user-0", 0, start);
        let codes: Vec<String> = (1..=MAX_ENTRIES)
            .map(|number| {
                let later = start + Duration::from_millis(number as u64);
                sessions.create_code(&format!("user-{number}"), number, later)
            })
            .collect();
        assert_eq!(sessions.codes.lock().0.len(), MAX_ENTRIES);
        assert_eq!(sessions.exchange(&first, start), None, "the oldest gave way");
        assert!(sessions.exchange(&codes[MAX_ENTRIES - 1], start).is_some());
    }

    #[test]
    fn nobody_ends_the_sessions_of_others() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let session = |user: &str| sessions.exchange(&sessions.create_code(user, (), start), start).unwrap().0;
        let (ann, code) = (session("ann"), sessions.create_code("ann", (), start));
        let mut hostile = Vec::new();
        for number in 0..2 * MAX_ENTRIES {
            hostile.push(session(&format!("system:serviceaccount:evil:a{number}")));
            sessions.create_code("eve", (), start);
        }
        assert!(sessions.credential(&ann, start).is_some() && sessions.exchange(&code, start).is_some());
        let left = hostile.iter().filter(|token| sessions.credential(token, start).is_some()).count();
        assert_eq!(left, MAX_PER_OWNER);
    }
}
