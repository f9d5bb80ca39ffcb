//! ImagePolicyWebhook: another server decides which images pods may use.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::enabled::unversioned;
use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;
use crate::outbound::{ConfiguredWebhook, with_backoff};

const AUDIT_PREFIX: &str = "imagepolicywebhook.image-policy.k8s.io/";
const MAX_CACHED: usize = 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

pub struct ImagePolicyWebhook {
    webhook: ConfiguredWebhook,
    allow_ttl: Duration,
    deny_ttl: Duration,
    /// Whether pods are allowed if the webhook gives no response.
    default_allow: bool,
    /// By a hash of the question, which holds texts of any length that users choose.
    cache: Mutex<HashMap<[u8; 32], (Review, Instant)>>,
}

impl std::fmt::Debug for ImagePolicyWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImagePolicyWebhook").field("default_allow", &self.default_allow).finish_non_exhaustive()
    }
}

/// What the webhook said.
#[derive(Clone, Debug)]
struct Review {
    allowed: bool,
    reason: String,
    annotations: Vec<(String, String)>,
}

impl ImagePolicyWebhook {
    /// Reads `{imagePolicy: {kubeConfigFile, allowTTL, denyTTL, retryBackoff, defaultAllow}}`. Relative paths start at
    /// `directory`.
    pub fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        let document = unversioned(text)?;
        let settings = document.at(&["imagePolicy"]);
        let file = settings.text(&["kubeConfigFile"]);
        if file.is_empty() {
            return Err("kubeConfigFile is required".to_owned());
        }
        Ok(ImagePolicyWebhook {
            webhook: ConfiguredWebhook::read(&directory.join(file), TIMEOUT).map_err(|error| error.to_string())?,
            allow_ttl: ttl(settings, "allowTTL", "allow")?,
            deny_ttl: ttl(settings, "denyTTL", "deny")?,
            default_allow: settings.flag(&["defaultAllow"]) == Some(true),
            cache: Mutex::default(),
        })
    }

    async fn review(&self, spec: &Value) -> Result<Review, String> {
        let key: [u8; 32] = Sha256::digest(spec.to_string()).into();
        if let Some((review, until)) = self.cache.lock().get(&key)
            && Instant::now() < *until
        {
            return Ok(review.clone());
        }
        let body = json!({
            "apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "metadata": {}, "spec": spec,
            "status": {"allowed": false},
        });
        let response = with_backoff(|| self.webhook.review(&body)).await.map_err(|error| error.to_string())?;
        let status = response.at(&["status"]);
        let annotations = status.fields(&["auditAnnotations"]).into_iter().flatten();
        let review = Review {
            allowed: status.flag(&["allowed"]) == Some(true),
            reason: status.text(&["reason"]).to_owned(),
            annotations: annotations
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
        };
        let mut cache = self.cache.lock();
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        let ttl = if review.allowed { self.allow_ttl } else { self.deny_ttl };
        cache.insert(key, (review.clone(), Instant::now() + ttl));
        Ok(review)
    }
}

/// A number of seconds up to half an hour; absent is 5 minutes, negative none.
fn ttl(settings: &Value, field: &str, name: &str) -> Result<Duration, String> {
    const LONGEST: i64 = 30 * 60;
    match settings.integer(&[field]) {
        None | Some(0) => Ok(Duration::from_secs(5 * 60)),
        Some(seconds) if seconds < 0 => Ok(Duration::ZERO),
        Some(seconds) if seconds <= LONGEST => Ok(Duration::from_secs(seconds.unsigned_abs())),
        Some(_) => Err(format!("valid value is between 1s and 30m0s, got {name} cache TTL of more")),
    }
}

fn spec(write: &Write<'_>) -> Value {
    let lists: &[&str] =
        if write.subresource.is_empty() { &["containers", "initContainers"] } else { &["ephemeralContainers"] };
    let containers = lists.iter().flat_map(|list| write.object.items(&["spec", list]));
    let containers: Vec<Value> = containers.map(|container| json!({"image": container.text(&["image"])})).collect();
    let annotations = write.object.fields(&["metadata", "annotations"]).into_iter().flatten();
    let annotations: Map<String, Value> = annotations
        .filter(|(key, _)| key.contains(".image-policy.k8s.io/"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut spec = json!({"containers": containers, "namespace": write.namespace});
    if !annotations.is_empty() {
        spec["annotations"] = Value::Object(annotations);
    }
    spec
}

/// Shared with the chain, so that the configuration can be kept.
pub struct ImagePolicy(pub std::sync::Arc<ImagePolicyWebhook>);

#[async_trait]
impl Plugin for ImagePolicy {
    fn name(&self) -> &'static str {
        "ImagePolicyWebhook"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update)
            && write.is_part_of("", "pods")
            && matches!(write.subresource, "" | "ephemeralcontainers")
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let annotate = |key: &str, value: &str| {
            if let Some(call) = write.call {
                call.annotate(format!("{AUDIT_PREFIX}{key}"), value.to_owned());
            }
        };
        let review = match self.0.review(&spec(write)).await {
            Ok(review) => review,
            Err(error) if self.0.default_allow => {
                tracing::warn!(error, "image policy webhook failed; the pod is allowed");
                annotate("failed-open", "true");
                return Ok(());
            }
            Err(error) => return Err(write.forbidden(error)),
        };
        for (key, value) in &review.annotations {
            annotate(key, value);
        }
        match (review.allowed, review.reason.as_str()) {
            (true, _) => Ok(()),
            (false, "") => Err(write.forbidden("one or more images rejected by webhook backend")),
            (false, reason) => {
                Err(write.forbidden(format!("image policy webhook backend denied one or more images: {reason}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use crate::outbound::test_kubeconfig;
    use crate::outbound::test_server::TestServer;

    #[tokio::test]
    async fn images_are_reviewed() {
        let directory = tempfile::tempdir().unwrap();
        let server = TestServer::start(|_, review| {
            let images: Vec<&str> =
                review.items(&["spec", "containers"]).iter().map(|container| container.text(&["image"])).collect();
            let status = match images.as_slice() {
                ["bad"] => json!({"allowed": false, "reason": "no bad images"}),
                ["silent"] => json!({"allowed": false}),
                _ => json!({"allowed": true}),
            };
            json!({"apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "status": status})
        })
        .await;
        let file = test_kubeconfig(directory.path(), &server, "/", "{}");
        let name = file.file_name().unwrap().to_str().unwrap();
        let plugin = |more: &str| {
            let text = format!("imagePolicy: {{kubeConfigFile: {name}, allowTTL: 50{more}}}");
            ImagePolicy(std::sync::Arc::new(ImagePolicyWebhook::parse(&text, directory.path()).unwrap()))
        };
        let pod = |image: &str| {
            json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n", "annotations": {"x": "y"}},
                   "spec": {"containers": [{"name": "c", "image": image}]}})
        };
        let none = Fixed::new(vec![]);
        let reviewing = plugin("");
        for (image, refused) in [
            ("good", None),
            (
                "bad",
                Some("pods \"p\" is forbidden: image policy webhook backend denied one or more images: no bad images"),
            ),
            ("silent", Some("pods \"p\" is forbidden: one or more images rejected by webhook backend")),
            ("good", None),
        ] {
            let outcome = run(&reviewing, Operation::Create, ("", "pods"), pod(image), None, &none).await;
            assert_eq!(outcome.err().as_deref(), refused, "{image}");
        }
        let received = server.received();
        assert_eq!(received.len(), 3, "responses are cached");
        let sent: Value = serde_json::from_slice(&received[0].body).unwrap();
        assert_eq!(sent["spec"], json!({"containers": [{"image": "good"}], "namespace": "n"}));
        let (closed, open) = (plugin(""), plugin(", defaultAllow: true"));
        drop(server);
        assert!(run(&closed, Operation::Create, ("", "pods"), pod("x"), None, &none).await.is_err());
        assert!(run(&open, Operation::Create, ("", "pods"), pod("x"), None, &none).await.is_ok());
    }
}
