//! Pulls one image, trying all matching credentials in turn.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use knarr_cri::Runtime;
use knarr_cri::messages::{Image, PodSandboxConfig};
use tokio::sync::Semaphore;

use super::access::Source;
use super::credentials::{Credentials, PullSecret};
use crate::events::Events;
use crate::objects::{Kind, Subscription};
use crate::pod;

/// How long attempts may start: each may hang for an hour if the registry does, and others wait for their turn meanwhile. Credentials
/// that a registry refuses are refused soon.
const MAX_TRYING: Duration = Duration::from_secs(600);

pub struct Pulled {
    pub image: Image,
    /// Whose credentials were needed, if not the node's.
    pub source: Option<Source>,
    pub pulling: Duration,
    /// Including the time spent waiting for other pulls.
    pub whole: Duration,
}

/// Why a pull failed, as the container's status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullFailure {
    pub reason: &'static str,
    pub message: String,
}

/// The pod's pull secrets. Missing ones get an event: the pull may succeed without them.
pub async fn secrets(events: &Events, pod: &Pod, objects: &Subscription) -> Vec<PullSecret> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let namespace = pod::namespace(pod);
    for name in names(pod) {
        match objects.get(Kind::Secret, namespace, &name).await {
            Ok(Some(content)) => found.push(PullSecret { namespace: namespace.to_owned(), name, content }),
            Ok(None) => missing.push(name),
            Err(error) => {
                tracing::warn!(%error, pod = pod::title(pod), "cannot read an image pull secret");
                missing.push(name);
            }
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        events.about_pod(pod, true, "FailedToRetrieveImagePullSecret", message);
    }
    found
}

/// The names of the pull secrets, each once however often the pod names it: all entries of each are read.
fn names(pod: &Pod) -> Vec<String> {
    let mut known = std::collections::HashSet::new();
    let references = pod::spec(pod).image_pull_secrets.iter().flatten().map(|reference| reference.name.as_str());
    references.filter(|name| !name.is_empty() && known.insert(*name)).map(str::to_owned).collect()
}

pub async fn in_turn(
    runtime: &Runtime,
    turns: &Semaphore,
    name: &str,
    credentials: Vec<Credentials>,
    sandbox: PodSandboxConfig,
    queued_at: Instant,
) -> Result<Pulled, String> {
    let _turn = turns.acquire().await.map_err(|error| error.to_string())?;
    let started = Instant::now();
    let last_start = tokio::time::Instant::now() + MAX_TRYING;
    let mut attempts: Vec<_> = credentials.into_iter().map(|one| (Some(one.auth), one.source)).collect();
    if attempts.is_empty() {
        attempts.push((None, None));
    }
    let mut failures = Vec::new();
    for (auth, source) in attempts {
        match runtime.pull_image(name, auth, sandbox.clone()).await {
            Ok(reference) => {
                let image = runtime.image_status(&reference).await.map_err(|error| error.rpc_message())?;
                let image = image.ok_or_else(|| format!("the pulled image {reference} is not there"))?;
                return Ok(Pulled { image, source, pulling: started.elapsed(), whole: queued_at.elapsed() });
            }
            Err(error) => failures.push(error.pull_message()),
        }
        if tokio::time::Instant::now() >= last_start {
            break;
        }
    }
    Err(together(failures))
}

/// Joins several distinct errors in brackets.
fn together(mut failures: Vec<String>) -> String {
    let mut seen = std::collections::HashSet::new();
    failures.retain(|failure| seen.insert(failure.clone()));
    match failures.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Derives the reason from the prefix of the runtime's error message.
pub fn classify(image: &str, why: String) -> PullFailure {
    for (reason, text) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = why.strip_prefix(reason) {
            return PullFailure { reason, message: format!("image pull failed for {image} because {text}{rest}") };
        }
    }
    PullFailure { reason: "ErrImagePull", message: why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_secret_is_read_once_however_often_it_is_named() {
        let named = ["b", "a", "", "b"].map(|name| serde_json::json!({ "name": name }));
        let pod = serde_json::json!({ "spec": { "containers": [], "imagePullSecrets": named } });
        assert_eq!(names(&serde_json::from_value(pod).expect("a pod")), ["b", "a"]);
    }

    #[test]
    fn pull_errors_are_joined_and_classified() {
        let all = |messages: &[&str]| together(messages.iter().map(|message| (*message).to_owned()).collect());
        assert_eq!(all(&["a"]), "a");
        assert_eq!(all(&["a", "a"]), "a");
        assert_eq!(all(&["a", "b", "a"]), "[a, b]");
        for (why, reason, message) in [
            ("not found", "ErrImagePull", "not found"),
            (
                "RegistryUnavailable: down",
                "RegistryUnavailable",
                "image pull failed for x because the registry is unavailable: down",
            ),
        ] {
            assert_eq!(classify("x", why.to_owned()), PullFailure { reason, message: message.to_owned() });
        }
    }
}
