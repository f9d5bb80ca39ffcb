//! The trail a pod leaves on its node for those who ask later what happened to it: spans under the `tracing` target
//! `journey`. A step lasts as long as what is returned here lives.

use k8s_openapi::api::core::v1::Pod;
use tracing::Span;
use tracing::field::Empty;

use crate::pod;

/// Begins a step that concerns a pod as a whole.
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

pub fn container_started(pod: &Pod, container: &str) -> Span {
    pod_step!("container-started", pod, container = container)
}

/// Notes how a step failed, if it did.
pub fn outcome<T, E: std::fmt::Display>(step: &Span, result: &Result<T, E>) {
    if let Err(error) = result {
        step.record("failed", tracing::field::display(error));
    }
}

/// A probe came to another verdict.
pub fn probe(pod: &Pod, container: &str, kind: &str, success: bool) {
    let object = format!("pods/{}", pod::title(pod));
    let result = if success { "passed" } else { "failed" };
    tracing::info!(target: "journey", step = "probe", object, container, probe = kind, result);
}
