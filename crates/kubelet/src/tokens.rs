//! Service account tokens of pods, renewed well before they expire.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::api_text::api_text;
use crate::pod;

#[derive(Debug, thiserror::Error)]
#[error("failed to fetch token: {0}")]
pub struct TokenError(String);

/// It has no `Debug`, so that no log can show it.
#[derive(Clone)]
pub struct Token {
    pub value: String,
    pub renew_at: Timestamp,
    pub expires_at: Timestamp,
}

type Key = (String, String, i64);

#[derive(Clone)]
pub struct Tokens {
    client: Client,
    cached: Arc<Mutex<HashMap<Key, Token>>>,
}

const INITIAL_BACKOFF: std::time::Duration = std::time::Duration::from_millis(10);
const MAX_BACKOFF: std::time::Duration = std::time::Duration::from_millis(1000);
/// A token is renewed at least once a day, whatever its lifetime.
const MAX_TOKEN_AGE: SignedDuration = SignedDuration::from_hours(24);

impl Tokens {
    pub fn new(client: Client) -> Self {
        Self { client, cached: Arc::default() }
    }

    /// A token bound to the pod: the cached one while it is fresh, otherwise a new one. If the API server is
    /// unreachable, an old token is used while it is valid.
    pub async fn get(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Token, TokenError> {
        let key = (pod::uid(pod).to_string(), audience.to_string(), seconds);
        let cached = self.cached.lock().get(&key).cloned();
        let now = Timestamp::now();
        if let Some(cached) = &cached
            && cached.renew_at > now
        {
            return Ok(cached.clone());
        }
        match self.request(pod, audience, seconds).await {
            Ok(token) => {
                self.cached.lock().insert(key, token.clone());
                Ok(token)
            }
            Err(error) => match cached.filter(|cached| cached.expires_at > now) {
                Some(cached) => {
                    tracing::warn!(%error, pod = pod::title(pod), "cannot renew a token");
                    let later = now.saturating_add(SignedDuration::from_mins(1)).unwrap_or(now);
                    Ok(Token { renew_at: later, ..cached })
                }
                None => Err(error),
            },
        }
    }

    pub fn forget(&self, uid: &str) {
        self.cached.lock().retain(|(owner, ..), _| owner != uid);
    }

    #[cfg(test)]
    pub fn put_for_test(&self, uid: &str, audience: &str, seconds: i64, value: &str) {
        let later = Timestamp::now().saturating_add(SignedDuration::from_hours(1)).expect("later");
        let token = Token { value: value.to_string(), renew_at: later, expires_at: later };
        self.cached.lock().insert((uid.to_string(), audience.to_string(), seconds), token);
    }

    async fn request(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Token, TokenError> {
        let account =
            pod::spec(pod).service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), pod::namespace(pod));
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: (!audience.is_empty()).then(|| vec![audience.to_string()]),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
                expiration_seconds: Some(seconds),
            }),
            ..Default::default()
        };
        let requested_at = Timestamp::now();
        let mut backoff = INITIAL_BACKOFF;
        let response = loop {
            match accounts.create_token_request(account, &PostParams::default(), &request).await {
                Ok(response) => break response,
                // The API server may see the pod's binding after us, and denies the request until then.
                Err(kube::Error::Api(status)) if status.code == 403 && backoff < MAX_BACKOFF => {
                    tokio::time::sleep(backoff).await;
                    backoff *= 2;
                }
                Err(error) => return Err(TokenError(api_text(&error))),
            }
        };
        let status = response.status.unwrap_or_default();
        let (Some(value), Some(expires)) = (status.token, status.expiration_timestamp) else {
            return Err(TokenError("the response has no token".into()));
        };
        Ok(Token { value, renew_at: renew_at(requested_at, expires.0), expires_at: expires.0 })
    }
}

/// After four fifths of its lifetime, and at least once a day.
fn renew_at(from: Timestamp, expires: Timestamp) -> Timestamp {
    let lifetime = expires.duration_since(from);
    let wait = (lifetime * 4 / 5).min(MAX_TOKEN_AGE);
    from.saturating_add(wait).unwrap_or(expires)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_in_time() {
        let at = |second| Timestamp::from_second(second).expect("a moment");
        assert_eq!(renew_at(at(0), at(1000)), at(800));
        assert_eq!(renew_at(at(0), at(10_000_000)), at(86_400));
    }
}
