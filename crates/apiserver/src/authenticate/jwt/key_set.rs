//! The public keys of an issuer, fetched when a token was signed by an unknown one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::signature::{Algorithm, JsonWebKey, PublicKey};
use super::token::UntrustedToken;
use crate::outbound::{Call, HttpClient};

/// The largest key set; a key is below a kilobyte.
pub const MAX_KEY_SET: usize = 1 << 20;
/// More keys than this are ignored: each may cost a signature verification.
const MAX_KEYS: usize = 256;
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Anybody can send a token with an unknown key, so fetches are limited: this many at once, then one per interval.
const FETCH_BURST: u32 = 10;
const FETCH_INTERVAL: Duration = Duration::from_secs(5);

pub struct KeySet {
    client: Arc<HttpClient>,
    url: Uri,
    algorithms: Vec<Algorithm>,
    cached: ArcSwap<Cached>,
    fetching: Mutex<Budget>,
}

#[derive(Default)]
struct Cached {
    keys: Vec<PublicKey>,
    /// Until then the issuer said its keys stay the same.
    fresh_until: Option<Instant>,
    /// Counts fetches.
    version: u64,
}

/// How many fetches are allowed now.
struct Budget {
    tokens: u32,
    refilled: Instant,
}

impl Budget {
    fn take(&mut self, now: Instant) -> bool {
        let earned = now.duration_since(self.refilled).as_secs() / FETCH_INTERVAL.as_secs();
        if earned > 0 {
            self.tokens = FETCH_BURST.min(self.tokens.saturating_add(u32::try_from(earned).unwrap_or(FETCH_BURST)));
            self.refilled = now;
        }
        let allowed = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allowed
    }
}

const NOT_SIGNED: &str = "failed to verify id token signature";

impl KeySet {
    pub fn new(client: Arc<HttpClient>, url: Uri, algorithms: Vec<Algorithm>) -> Self {
        let budget = Budget { tokens: FETCH_BURST, refilled: Instant::now() };
        KeySet { client, url, algorithms, cached: ArcSwap::default(), fetching: Mutex::new(budget) }
    }

    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// Whether one of the issuer's keys signed the token. Known keys are tried first; if none did, keys are fetched.
    pub async fn verify(&self, token: &UntrustedToken<'_>, algorithm: Algorithm) -> Result<(), String> {
        let known = self.cached.load_full();
        if known.keys.iter().any(|key| token.is_signed_by(key, algorithm)) {
            return Ok(());
        }
        if known.fresh_until.is_some_and(|until| Instant::now() < until) {
            return Err(NOT_SIGNED.to_owned());
        }
        let fetched = self.fetch(known.version).await.map_err(|error| format!("fetching keys {error}"))?;
        if fetched.keys.iter().any(|key| token.is_signed_by(key, algorithm)) {
            Ok(())
        } else {
            Err(NOT_SIGNED.to_owned())
        }
    }

    /// Fetches the keys, unless another request fetched them since `known`.
    async fn fetch(&self, known: u64) -> Result<Arc<Cached>, String> {
        let mut budget = self.fetching.lock().await;
        let current = self.cached.load_full();
        if current.version != known {
            return Ok(current);
        }
        if !budget.take(Instant::now()) {
            return Err("oidc: get keys failed: too many tokens with unknown keys".to_owned());
        }
        let call = Call {
            method: Method::GET,
            url: self.url.clone(),
            headers: Vec::new(),
            body: Bytes::new(),
            timeout: FETCH_TIMEOUT,
            max_response: MAX_KEY_SET,
        };
        let reply = self.client.send(call).await.map_err(|error| format!("oidc: get keys failed {error}"))?;
        if reply.status != http::StatusCode::OK {
            return Err(format!("oidc: get keys failed: {}", reply.status));
        }
        let keys = parse(&reply.body)?;
        let fresh_until = max_age(&reply.headers).map(|age| Instant::now() + age);
        let fetched = Arc::new(Cached { keys, fresh_until, version: known + 1 });
        self.cached.store(fetched.clone());
        Ok(fetched)
    }
}

/// The keys of a key set that can be used.
pub fn parse(body: &[u8]) -> Result<Vec<PublicKey>, String> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        keys: Vec<serde_json::Value>,
    }
    let document: Document =
        serde_json::from_slice(body).map_err(|error| format!("oidc: failed to decode keys: {error}"))?;
    let parsed = document.keys.into_iter().filter_map(|key| serde_json::from_value::<JsonWebKey>(key).ok());
    Ok(parsed.filter_map(|key| key.public_key()).take(MAX_KEYS).collect())
}

/// How long a response may be reused. Not longer than an hour, so that a mistake does not last.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    const LONGEST: u64 = 3600;
    let text = headers.get(http::header::CACHE_CONTROL)?.to_str().ok()?.to_ascii_lowercase();
    let directives: Vec<&str> = text.split(',').map(str::trim).collect();
    if directives.iter().any(|directive| matches!(*directive, "no-store" | "no-cache")) {
        return None;
    }
    let seconds = directives.iter().find_map(|directive| directive.strip_prefix("max-age="))?.parse::<u64>().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds.min(LONGEST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_are_limited() {
        let start = Instant::now();
        let mut budget = Budget { tokens: FETCH_BURST, refilled: start };
        assert_eq!((0..100).filter(|_| budget.take(start)).count(), FETCH_BURST as usize);
        assert!(budget.take(start + FETCH_INTERVAL) && !budget.take(start + FETCH_INTERVAL));
        let late = start + Duration::from_secs(1 << 40);
        assert_eq!((0..100).filter(|_| budget.take(late)).count(), FETCH_BURST as usize);
    }

    #[test]
    fn the_issuer_says_how_long_keys_stay() {
        let age = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::CACHE_CONTROL, text.parse().unwrap());
            max_age(&headers).map(|age| age.as_secs())
        };
        assert_eq!(age("public, max-age=60"), Some(60));
        assert_eq!(age("max-age=999999999999"), Some(3600));
        assert_eq!((age("no-store, max-age=60"), age("max-age=x"), age("")), (None, None, None));
    }
}
