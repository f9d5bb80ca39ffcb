//! The webhook authorizer: another server decides, and its decisions are cached.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::match_conditions::MatchConditions;
use super::review_attributes::{condition_input, spec};
use super::{Authorizer, Decision};
use crate::blocking;
use crate::outbound::{ConfiguredWebhook, WebhookFailure};
use crate::request::{Target, User};

const MAX_CACHED: usize = 8192;
/// Requests with longer attributes are not cached, so that nobody fills the memory with made-up names.
const MAX_CACHED_ATTRIBUTES: usize = 10_000;

pub struct WebhookSettings {
    pub name: String,
    /// `v1` or `v1beta1`.
    pub version: String,
    /// Zero for no caching.
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    /// Whether a request is denied if the webhook does not respond.
    pub denies_on_failure: bool,
    pub conditions: MatchConditions,
}

pub struct WebhookAuthorizer {
    webhook: ConfiguredWebhook,
    settings: WebhookSettings,
    cache: Mutex<HashMap<String, (Status, Instant)>>,
}

/// What the webhook said.
#[derive(Clone, Debug)]
struct Status {
    allowed: bool,
    denied: bool,
    reason: String,
}

impl WebhookAuthorizer {
    pub fn new(webhook: ConfiguredWebhook, settings: WebhookSettings) -> Self {
        WebhookAuthorizer { webhook, settings, cache: Mutex::default() }
    }

    fn failed(&self, error: String) -> Decision {
        Decision::Failed { error, is_final: self.settings.denies_on_failure }
    }

    fn cached(&self, key: &str, now: Instant) -> Option<Status> {
        let cache = self.cache.lock();
        cache.get(key).filter(|(_, until)| now < *until).map(|(status, _)| status.clone())
    }

    fn remember(&self, key: String, status: &Status, now: Instant) {
        let ttl = if status.allowed { self.settings.authorized_ttl } else { self.settings.unauthorized_ttl };
        if ttl.is_zero() || key.len() > MAX_CACHED_ATTRIBUTES {
            return;
        }
        let mut cache = self.cache.lock();
        if cache.len() >= MAX_CACHED {
            cache.retain(|_, (_, until)| now < *until);
        }
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(key, (status.clone(), now + ttl));
    }

    async fn ask(&self, spec: &Value) -> Result<Status, WebhookFailure> {
        let review = json!({
            "apiVersion": format!("authorization.k8s.io/{}", self.settings.version),
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": sent_spec(spec, &self.settings.version),
            "status": {"allowed": false},
        });
        let response = crate::outbound::with_backoff(|| self.webhook.review(&review)).await?;
        let status = response.at(&["status"]);
        Ok(Status {
            allowed: status.flag(&["allowed"]) == Some(true),
            denied: status.flag(&["denied"]) == Some(true),
            reason: status.text(&["reason"]).to_owned(),
        })
    }
}

/// The older version calls the groups `group`.
fn sent_spec(spec: &Value, version: &str) -> Value {
    let mut sent = spec.clone();
    if version == "v1beta1"
        && let Some(groups) = sent.as_object_mut().and_then(|fields| fields.remove("groups"))
    {
        sent["group"] = groups;
    }
    sent
}

#[async_trait]
impl Authorizer for WebhookAuthorizer {
    fn decide(&self, user: &User, target: &Target) -> Decision {
        blocking::wait(self.authorize(user, target))
    }

    async fn authorize(&self, user: &User, target: &Target) -> Decision {
        let spec = spec(user, target);
        if !self.settings.conditions.is_empty() {
            match self.settings.conditions.hold(&condition_input(&spec)) {
                Ok(true) => {}
                Ok(false) => return Decision::NoOpinion(String::new()),
                Err(error) => return self.failed(error),
            }
        }
        let key = spec.to_string();
        let status = match self.cached(&key, Instant::now()) {
            Some(status) => status,
            None => match self.ask(&spec).await {
                Ok(status) => {
                    self.remember(key, &status, Instant::now());
                    status
                }
                Err(error) => {
                    tracing::error!(webhook = self.settings.name, %error, "failed to make webhook authorizer request");
                    return self.failed(error.to_string());
                }
            },
        };
        match (status.denied, status.allowed) {
            (true, true) => Decision::Failed {
                error: "webhook subject access review returned both allow and deny response".to_owned(),
                is_final: true,
            },
            (true, false) => Decision::Deny(status.reason),
            (false, true) => Decision::Allow(status.reason),
            (false, false) => Decision::NoOpinion(status.reason),
        }
    }

    fn rules(&self, _user: &User, _namespace: &str) -> super::UserRules {
        let why = "webhook authorizer does not support user rule resolution";
        super::UserRules { missing_roles: vec![why.into()], ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::test_kubeconfig;
    use crate::outbound::test_server::TestServer;
    use knarr_api::field::{Errors, Path};

    fn settings(conditions: &[&str], denies_on_failure: bool) -> WebhookSettings {
        let conditions: Vec<Value> = conditions.iter().map(|text| json!({"expression": text})).collect();
        let mut errors = Errors::new();
        let conditions = MatchConditions::compile(&conditions, &Path::root("w"), &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        WebhookSettings {
            name: "w".into(),
            version: "v1".into(),
            authorized_ttl: Duration::from_secs(60),
            unauthorized_ttl: Duration::from_secs(60),
            denies_on_failure,
            conditions,
        }
    }

    fn target(resource: &str) -> Target {
        Target { verb: "get".into(), version: "v1".into(), resource: resource.into(), ..Target::default() }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_webhook_decides_and_is_asked_once() {
        let directory = tempfile::tempdir().unwrap();
        let server = TestServer::start(|_, review| {
            let status = match review.text(&["spec", "resourceAttributes", "resource"]) {
                "pods" => json!({"allowed": true, "reason": "fine"}),
                "secrets" => json!({"allowed": false, "denied": true, "reason": "never"}),
                "both" => json!({"allowed": true, "denied": true}),
                _ => json!({"allowed": false, "reason": "unknown"}),
            };
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": status})
        })
        .await;
        let file = test_kubeconfig(directory.path(), &server, "/authorize", "{}");
        let webhook = ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
        let skips = ["request.resourceAttributes.resource != 'skipped'"];
        let authorizer = WebhookAuthorizer::new(webhook, settings(&skips, true));
        let user = User::named("ann", &["g"]);
        for _ in 0..3 {
            for (resource, expected) in [
                ("pods", Decision::Allow("fine".into())),
                ("secrets", Decision::Deny("never".into())),
                ("nodes", Decision::NoOpinion("unknown".into())),
                ("skipped", Decision::NoOpinion(String::new())),
            ] {
                assert_eq!(authorizer.authorize(&user, &target(resource)).await, expected);
            }
        }
        let received = server.received();
        assert_eq!(received.len(), 3, "responses are cached");
        let sent: Value = serde_json::from_slice(&received[0].body).unwrap();
        assert_eq!(
            sent["spec"],
            json!({"user": "ann", "groups": ["g"],
                   "resourceAttributes": {"resource": "pods", "verb": "get", "version": "v1"}})
        );
        assert!(matches!(authorizer.authorize(&user, &target("both")).await, Decision::Failed { is_final: true, .. }));
        // The same from code that cannot wait otherwise.
        assert_eq!(authorizer.decide(&user, &target("services")), Decision::NoOpinion("unknown".into()));
    }

    #[tokio::test]
    async fn a_webhook_that_hangs_or_fails_allows_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let server = TestServer::respond(None, |_| {
            http::Response::builder().status(403).body(http_body_util::Full::default()).unwrap()
        })
        .await;
        let file = test_kubeconfig(directory.path(), &server, "/", "{}");
        let user = User::named("ann", &[]);
        for denies in [true, false] {
            let webhook = ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
            let authorizer = WebhookAuthorizer::new(webhook, settings(&[], denies));
            let expected = Decision::Failed { error: "forbidden".into(), is_final: denies };
            assert_eq!(authorizer.authorize(&user, &target("pods")).await, expected);
        }
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let port = silent.local_addr().unwrap().port();
        std::fs::write(&file, text.replace(&format!(":{}", server.port), &format!(":{port}"))).unwrap();
        let webhook = ConfiguredWebhook::read(&file, Duration::from_millis(50)).unwrap();
        let authorizer = WebhookAuthorizer::new(webhook, settings(&[], true));
        let Decision::Failed { error, is_final: true } = authorizer.authorize(&user, &target("pods")).await else {
            panic!("a decision without a response");
        };
        assert!(error.ends_with("context deadline exceeded"), "{error}");
    }

    #[tokio::test]
    async fn failing_conditions_follow_the_failure_policy() {
        let directory = tempfile::tempdir().unwrap();
        let server = TestServer::start(|_, _| json!({"status": {"allowed": true}})).await;
        let file = test_kubeconfig(directory.path(), &server, "/", "{}");
        let fails = ["request.extra['x'][0] == 'y'", "request.user != 'bob'"];
        for denies in [true, false] {
            let webhook = ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
            let authorizer = WebhookAuthorizer::new(webhook, settings(&fails, denies));
            let decision = authorizer.authorize(&User::named("ann", &[]), &target("pods")).await;
            assert!(matches!(decision, Decision::Failed { is_final, .. } if is_final == denies), "{decision:?}");
            let skipped = authorizer.authorize(&User::named("bob", &[]), &target("pods")).await;
            assert_eq!(skipped, Decision::NoOpinion(String::new()), "a false condition decides");
        }
        assert!(server.received().is_empty());
    }
}
