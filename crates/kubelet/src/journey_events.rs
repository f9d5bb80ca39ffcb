//! Journey events of a pod on this node: spans and events under the `tracing` target `journey`, which `knarr why`
//! reads. A step lasts as long as the returned span lives.

use k8s_openapi::api::core::v1::{Pod, Volume};
use tracing::Span;
use tracing::field::Empty;

use crate::pod;
use crate::runtime::ContainerView;

/// Starts a step of a pod.
macro_rules! pod_step {
    ($name:literal, $pod:expr $(, $field:ident = $value:expr)*) => {
        tracing::info_span!(
            target: "journey",
            $name,
            object = %format_args!("pods/{}", $crate::pod::title($pod)),
            failed = tracing::field::Empty
            $(, $field = $value)*
        )
    };
}
pub(crate) use pod_step;

pub fn sandbox(pod: &Pod) -> Span {
    pod_step!("sandbox", pod, address = Empty)
}

pub fn image(pod: &Pod, container: &str, image: &str) -> Span {
    pod_step!("image", pod, container = container, image = image, found = Empty)
}

pub fn container_created(pod: &Pod, container: &str) -> Span {
    pod_step!("container-created", pod, container = container)
}

/// A container starts; `restart` counts from the second time on.
pub fn container_started(pod: &Pod, container: &str, restart: u32) -> Span {
    let step = pod_step!("container-started", pod, container = container, restart = Empty);
    if restart > 0 {
        step.record("restart", u64::from(restart));
    }
    step
}

pub fn hook(pod: &Pod, container: &str, hook: &str) -> Span {
    pod_step!("hook", pod, container = container, hook = hook)
}

pub fn volume(pod: &Pod, volume: &Volume) -> Span {
    pod_step!("volume", pod, volume = volume.name.as_str(), kind = source(volume))
}

pub fn staged(pod: &Pod, volume: &str, driver: &str) -> Span {
    pod_step!("staged", pod, volume = volume, driver = driver)
}

pub fn published(pod: &Pod, volume: &str, driver: &str) -> Span {
    pod_step!("published", pod, volume = volume, driver = driver)
}

pub fn expanded(pod: &Pod, volume: &str, driver: &str) -> Span {
    pod_step!("expanded", pod, volume = volume, driver = driver)
}

/// Where the content of a volume comes from.
fn source(volume: &Volume) -> String {
    let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
    if let Some(claim) = &volume.persistent_volume_claim {
        return format!("claim {}", claim.claim_name);
    }
    if let Some(map) = &volume.config_map {
        return format!("configMap {}", map.name);
    }
    if let Some(secret) = &volume.secret {
        return format!("secret {}", name(secret.secret_name.as_deref()));
    }
    if let Some(path) = &volume.host_path {
        return format!("hostPath {}", path.path);
    }
    let kinds = [
        (volume.empty_dir.is_some(), "emptyDir"),
        (volume.projected.is_some(), "projected"),
        (volume.downward_api.is_some(), "downwardAPI"),
        (volume.ephemeral.is_some(), "ephemeral"),
        (volume.image.is_some(), "image"),
        (volume.csi.is_some(), "csi"),
    ];
    kinds.iter().find(|(is, _)| *is).map(|(_, kind)| (*kind).to_owned()).unwrap_or_default()
}

/// The kubelet has accepted a pod.
pub fn accepted(pod: &Pod, node: &str) {
    tracing::info!(target: "journey", step = "accepted", object = object(pod), node);
}

pub fn refused(pod: &Pod, why: &str) {
    tracing::info!(target: "journey", step = "refused", object = object(pod), why);
}

/// A container terminated, by itself or because it was stopped.
pub fn container_terminated(pod: &Pod, view: &ContainerView) {
    let ran = view
        .started_at
        .zip(view.finished_at)
        .and_then(|(from, to)| u64::try_from(to.duration_since(from).as_micros()).ok());
    tracing::info!(
        target: "journey",
        step = "container-ended",
        object = object(pod),
        container = view.name,
        code = view.exit_code,
        reason = view.reason,
        ran = ran.unwrap_or_default(),
    );
}

/// Records the error of a failed step.
pub fn outcome<T, E: std::fmt::Display>(step: &Span, result: &Result<T, E>) {
    if let Err(error) = result {
        step.record("failed", tracing::field::display(error));
    }
}

/// A probe's result changed; `why` is the message of a failure.
pub fn probe(pod: &Pod, container: &str, kind: &str, success: bool, why: &str) {
    let result = if success { "passed" } else { "failed" };
    tracing::info!(target: "journey", step = "probe", object = object(pod), container, probe = kind, result, why);
}

fn object(pod: &Pod) -> String {
    format!("pods/{}", pod::title(pod))
}
