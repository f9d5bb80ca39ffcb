//! One pull of an image, with each of the credentials that may be for it.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use knarr_cri::messages::{Image, PodSandboxConfig};
use tokio::sync::Semaphore;

use super::access::SecretUsed;
use super::credentials::{self, PullSecret};
use crate::context::Context;
use crate::objects::{Subscription, Kind};
use crate::pod;

pub struct Pulled {
    pub image: Image,
    /// The secret that was needed.
    pub secret: Option<SecretUsed>,
    pub pulling: Duration,
    /// With the time spent waiting for other pulls.
    pub whole: Duration,
}

/// StopReason a pull failed, as the container's status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
}

/// The secrets that the pod names. Those that can't be had are told of: the pull may do without.
pub async fn secrets(context: &Context, pod: &Pod, objects: &Subscription) -> Vec<PullSecret> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let namespace = pod::namespace(pod);
    let references = pod::spec(pod).image_pull_secrets.iter().flatten();
    for reference in references.filter(|reference| !reference.name.is_empty()) {
        let name = reference.name.clone();
        match objects.get(Kind::Secret, namespace, &name).await {
            Ok(Some(content)) => found.push(PullSecret { namespace: namespace.to_owned(), name, content }),
            Ok(None) => missing.push(name),
            Err(error) => {
                tracing::warn!(%error, pod = pod::title(pod), "an image pull secret can't be read");
                missing.push(name);
            }
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        context.pod_event(pod, true, "FailedToRetrieveImagePullSecret", message);
    }
    found
}

pub async fn in_turn(
    context: &Context,
    turns: &Semaphore,
    name: &str,
    secrets: &[PullSecret],
    sandbox: PodSandboxConfig,
    asked: Instant,
) -> Result<Pulled, String> {
    let _turn = turns.acquire().await.map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let mut attempts: Vec<_> =
        credentials::matching(secrets, name).into_iter().map(|one| (Some(one.auth), Some(one.source))).collect();
    if attempts.is_empty() {
        attempts.push((None, None));
    }
    let mut refusals = Vec::new();
    for (auth, secret) in attempts {
        match context.runtime.pull_image(name, auth, sandbox.clone()).await {
            Ok(reference) => {
                let image = context.runtime.image_status(&reference).await.map_err(|error| error.rpc_message())?;
                let image = image.ok_or_else(|| format!("the pulled image {reference} is not there"))?;
                return Ok(Pulled { image, secret, pulling: begun.elapsed(), whole: asked.elapsed() });
            }
            Err(error) => refusals.push(error.pull_message()),
        }
    }
    Err(together(refusals))
}

/// Several reasons in brackets, each once.
fn together(mut refusals: Vec<String>) -> String {
    let mut seen = std::collections::HashSet::new();
    refusals.retain(|refusal| seen.insert(refusal.clone()));
    match refusals.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Runtimes begin what they say with a word for what kind of failure it is.
pub fn judge(image: &str, why: String) -> Refusal {
    for (reason, words) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = why.strip_prefix(reason) {
            return Refusal { reason, message: format!("image pull failed for {image} because {words}{rest}") };
        }
    }
    Refusal { reason: "ErrImagePull", message: why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_and_by_kind() {
        let all = |words: &[&str]| together(words.iter().map(|word| (*word).to_owned()).collect());
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
            assert_eq!(judge("x", why.to_owned()), Refusal { reason, message: message.to_owned() });
        }
    }
}
