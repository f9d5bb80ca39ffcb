//! What a claim asks for.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use knarr_client::quantity;

/// The requested size; zero if it names none.
pub(crate) fn requested_bytes(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| requests.get("storage")).map_or(0, quantity::value)
}
