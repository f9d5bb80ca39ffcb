//! The trail that work on an object leaves for those who ask later how it came to be: spans and events under the
//! `tracing` target `journey`.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::Key;

/// A controller looks at an object for as long as what is returned lives.
pub fn seen(controller: &'static str, resource: &'static str, key: &Key) -> tracing::Span {
    let object = format!("{resource}/{key}");
    tracing::info_span!(target: "journey", "reconciled", object, controller)
}

/// The pods of slices that were just written can be reached by their Service, as far as they are ready.
pub fn published(service: &Key, slices: &[EndpointSlice]) {
    if !tracing::enabled!(target: "journey", tracing::Level::INFO) {
        return;
    }
    for endpoint in slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()) {
        let Some(pod) = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref()) else { continue };
        tracing::info!(
            target: "journey",
            step = "endpoint",
            object = format!("pods/{}/{pod}", service.namespace),
            service = format!("services/{service}"),
            condition = condition(endpoint),
        );
    }
}

fn condition(endpoint: &Endpoint) -> &'static str {
    let conditions = endpoint.conditions.as_ref();
    let is = |value: Option<bool>, default: bool| value.unwrap_or(default);
    if is(conditions.and_then(|conditions| conditions.terminating), false) {
        "terminating"
    } else if is(conditions.and_then(|conditions| conditions.ready), true) {
        "ready"
    } else {
        "not ready"
    }
}
