//! Tokens that another server knows: it is asked with a TokenReview, and its responses are cached.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::outbound::{ConfiguredWebhook, with_backoff};
use crate::request::User;

const MAX_CACHED: usize = 32 * 1024;

pub struct TokenWebhook {
    webhook: ConfiguredWebhook,
    /// `v1` or `v1beta1`.
    version: String,
    /// Zero for no caching.
    ttl: Duration,
    /// By a hash of token and audiences, so that memory holds no tokens.
    cache: Mutex<HashMap<[u8; 32], (Outcome, Instant)>>,
}

/// A user and the audiences the token is valid for, or an error, or nothing if the token is unknown.
type Outcome = Result<Option<(User, Vec<String>)>, String>;

impl TokenWebhook {
    pub fn new(webhook: ConfiguredWebhook, version: &str, ttl: Duration) -> Self {
        TokenWebhook { webhook, version: version.to_owned(), ttl, cache: Mutex::default() }
    }

    /// Asks for the user of a token. `implicit` are the audiences of a webhook that names none.
    pub async fn user(&self, token: &str, audiences: &[String], implicit: &[String]) -> Outcome {
        let key = key(token, audiences);
        if let Some((outcome, until)) = self.cache.lock().get(&key)
            && Instant::now() < *until
        {
            return outcome.clone();
        }
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token, "audiences": audiences},
            "status": {"user": {}},
        });
        let response = match with_backoff(|| self.webhook.review(&review)).await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(%error, "failed to make webhook authenticator request");
                return Err(error.to_string());
            }
        };
        let outcome = read(response.at(&["status"]), audiences, implicit);
        self.remember(key, &outcome);
        outcome
    }

    fn remember(&self, key: [u8; 32], outcome: &Outcome) {
        if self.ttl.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut cache = self.cache.lock();
        if cache.len() >= MAX_CACHED {
            cache.retain(|_, (_, until)| now < *until);
        }
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(key, (outcome.clone(), now + self.ttl));
    }
}

fn key(token: &str, audiences: &[String]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in audiences.iter().map(String::as_str).chain([token]) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn read(status: &Value, audiences: &[String], implicit: &[String]) -> Outcome {
    if status.flag(&["authenticated"]) != Some(true) {
        return match status.text(&["error"]) {
            "" => Ok(None),
            error => Err(error.to_owned()),
        };
    }
    let named = texts(status.at(&["audiences"]))?;
    let valid = if named.is_empty() { implicit } else { &named };
    let common: Vec<String> = audiences.iter().filter(|audience| valid.contains(audience)).cloned().collect();
    if common.is_empty() && !audiences.is_empty() {
        return Ok(None);
    }
    let user = status.at(&["user"]);
    let extra = user.fields(&["extra"]).into_iter().flatten();
    let extra = extra.map(|(key, values)| Ok((key.clone(), texts(values)?)));
    let user = User {
        name: user.text(&["username"]).to_owned(),
        uid: user.text(&["uid"]).to_owned(),
        groups: texts(user.at(&["groups"]))?,
        extra: extra.collect::<Result<_, String>>()?,
    };
    Ok(Some((user, common)))
}

/// A list of texts, which may be left out. Anything else is an error: it could have limited what the token is valid for.
fn texts(value: &Value) -> Result<Vec<String>, String> {
    let unreadable = || "the webhook's response is not a TokenReview".to_owned();
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(unreadable)).collect(),
        _ => Err(unreadable()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::test_kubeconfig;
    use crate::outbound::test_server::TestServer;

    #[tokio::test]
    async fn the_webhook_knows_users_and_is_asked_once() {
        let directory = tempfile::tempdir().unwrap();
        let server = TestServer::start(|_, review| {
            let status = match review.text(&["spec", "token"]) {
                "good" => json!({"authenticated": true, "user": {"username": "ann", "uid": "7", "groups": ["g"],
                                 "extra": {"scope": ["all"]}}}),
                "elsewhere" => json!({"authenticated": true, "user": {"username": "ann"}, "audiences": ["other"]}),
                "broken" => json!({"authenticated": false, "error": "no such token"}),
                _ => json!({"authenticated": false}),
            };
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status})
        })
        .await;
        let file = test_kubeconfig(directory.path(), &server, "/authenticate", "{}");
        let webhook = ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
        let webhook = TokenWebhook::new(webhook, "v1", Duration::from_secs(60));
        let api = ["api".to_owned()];
        for _ in 0..3 {
            let (user, audiences) = webhook.user("good", &api, &api).await.unwrap().unwrap();
            assert_eq!((user.name.as_str(), user.uid.as_str(), user.groups.join(",").as_str()), ("ann", "7", "g"));
            assert_eq!((user.extra["scope"].join(","), audiences), ("all".to_owned(), api.to_vec()));
            assert_eq!(webhook.user("elsewhere", &api, &api).await, Ok(None));
            assert_eq!(webhook.user("broken", &api, &api).await, Err("no such token".to_owned()));
            assert_eq!(webhook.user("unknown", &api, &api).await, Ok(None));
        }
        let received = server.received();
        assert_eq!(received.len(), 4, "responses are cached");
        let sent: Value = serde_json::from_slice(&received[0].body).unwrap();
        assert_eq!(sent["spec"], json!({"token": "good", "audiences": ["api"]}));
        webhook.user("good", &["other".to_owned()], &api).await.unwrap();
        assert_eq!(server.received().len(), 1, "another audience is another question");
    }

    #[test]
    fn a_response_of_another_type_authenticates_nobody() {
        let api = ["api".to_owned()];
        for (field, value) in [
            ("audiences", json!([7])),
            ("audiences", json!("other")),
            ("user", json!({"username": "ann", "groups": "g"})),
            ("user", json!({"username": "ann", "groups": [["g"]]})),
            ("user", json!({"username": "ann", "extra": {"scope": "all"}})),
        ] {
            let mut status = json!({"authenticated": true, "user": {"username": "ann"}});
            assert!(read(&status, &api, &api).is_ok_and(|user| user.is_some()));
            status[field] = value;
            assert!(read(&status, &api, &api).is_err(), "{status}");
        }
    }

    #[tokio::test]
    async fn a_webhook_that_hangs_or_sends_nonsense_authenticates_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let nonsense = TestServer::respond(None, |_| http::Response::new("nonsense".into())).await;
        let file = test_kubeconfig(directory.path(), &nonsense, "/", "{}");
        let webhook = ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
        let webhook = TokenWebhook::new(webhook, "v1", Duration::from_secs(60));
        assert!(webhook.user("t", &[], &[]).await.is_err());
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(&format!(":{}", nonsense.port), &format!(":{port}"))).unwrap();
        let webhook = ConfiguredWebhook::read(&file, Duration::from_millis(50)).unwrap();
        let webhook = TokenWebhook::new(webhook, "v1", Duration::from_secs(60));
        let refused = webhook.user("secret-token", &[], &[]).await.unwrap_err();
        assert!(refused.ends_with("context deadline exceeded") && !refused.contains("secret-token"), "{refused}");
    }
}
