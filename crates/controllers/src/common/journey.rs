//! Journey events: spans and events under the `tracing` target `journey` that record how an object came to be.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::Key;

/// Span of one sync of an object; it lasts until the guard is dropped.
pub fn sync_span(controller: &'static str, resource: &'static str, key: &Key) -> tracing::Span {
    let object = format!("{resource}/{key}");
    tracing::info_span!(target: "journey", "reconciled", object, controller)
}

/// Records that the ready pods of slices just written can be reached through their Service.
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
