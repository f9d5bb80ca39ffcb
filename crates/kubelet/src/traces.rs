//! Spans of the node: requests to its endpoints, syncs of pods, and calls to the container runtime.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use http::HeaderMap;
use k8s_openapi::api::core::v1::Pod;
use knarr_supervisor::Supervisor;
use knarr_traces::{Configuration, ConfigurationError, Kind, Parent, Span, TraceContext, Tracer};

use crate::pod;

/// A process has one node.
static TRACER: OnceLock<Tracer> = OnceLock::new();

/// Starts to send spans, if the node is configured to.
pub fn start(
    configuration: Option<&Configuration>,
    node: &str,
    supervisor: &Supervisor,
) -> Result<(), ConfigurationError> {
    let Some(configuration) = configuration else { return Ok(()) };
    if TRACER.get().is_none() {
        let attributes = [("k8s.node.name", node.to_owned())];
        let tracer = Tracer::start(configuration, "kubelet", &attributes, supervisor)?;
        // Set once per process.
        let _ = TRACER.set(tracer);
    }
    Ok(())
}

/// The span of an authorized request. As in Kubernetes, its sender does not decide what is sampled here.
pub fn request(method: &str, path: &'static str, headers: &HeaderMap) -> Option<Span> {
    let parent = TraceContext::of_headers(headers).map_or(Parent::None, Parent::Linked);
    let mut span = TRACER.get()?.span(format!("{method} /{path}"), Kind::Server, parent)?;
    span.text("http.request.method", method);
    Some(span)
}

/// The span of a step of a pod's worker.
pub fn sync(operation: &str, own: &Pod) -> Option<Span> {
    let name = if operation == "kill" { "syncTerminatingPod" } else { "syncPod" };
    let mut span = TRACER.get()?.span(name, Kind::Internal, Parent::None)?;
    span.text("k8s.pod.uid", pod::uid(own));
    span.text("k8s.pod.name", pod::name(own));
    span.text("k8s.namespace.name", pod::namespace(own));
    span.text("k8s.pod.update_type", operation);
    Some(span)
}

/// The span of something that this node does by itself.
pub fn internal(name: &'static str) -> Option<Span> {
    TRACER.get()?.span(name, Kind::Internal, Parent::None)
}

/// Records a call to the container runtime that ended now, as part of the sync that caused it.
pub fn runtime_called(method: &str, took: Duration, succeeded: bool) {
    let Some(tracer) = TRACER.get() else { return };
    let within = knarr_traces::child_of_current(call_name(method), Kind::Client);
    // A sync that is not sampled has no span: its calls are sampled by themselves.
    let Some(mut span) = within.or_else(|| tracer.span(call_name(method), Kind::Client, Parent::None)) else { return };
    if !succeeded {
        span.failed("");
    }
    if let Some(started) = Instant::now().checked_sub(took) {
        span = span.started(started);
    }
    drop(span);
}

fn call_name(method: &str) -> String {
    let is_image = method.contains("Image");
    let service = if is_image { "ImageService" } else { "RuntimeService" };
    format!("runtime.v1.{service}/{method}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_their_services() {
        assert_eq!(call_name("RunPodSandbox"), "runtime.v1.RuntimeService/RunPodSandbox");
        assert_eq!(call_name("PullImage"), "runtime.v1.ImageService/PullImage");
        assert_eq!(call_name("ImageFsInfo"), "runtime.v1.ImageService/ImageFsInfo");
    }
}
