//! Calls one webhook.

use bytes::Bytes;
use knarr_api::status::Status;

use super::configuration::Webhook;
use super::review::{self, ReviewResponse};
use crate::admit::Write;
use crate::admit::dynamic::versioned::Versioned;
use crate::outbound::Outgoing;
use crate::resource_request::ResourceRequest;

/// Why a webhook did not allow a write.
#[derive(Debug)]
pub enum Failure {
    /// The call failed, or its response was invalid.
    CallFailed(String),
    /// It refused the write, or cannot handle it.
    Refused(Status),
}

/// Sends the write to a webhook and reads its response.
pub async fn call(
    webhook: &Webhook,
    write: &Write<'_>,
    call: &ResourceRequest<'_>,
    versioned: &Versioned,
    mutating: bool,
) -> Result<ReviewResponse, Failure> {
    if write.dry_run && !webhook.supports_dry_run {
        let why = format!("admission webhook {:?} does not support dry run", webhook.name);
        return Err(Failure::Refused(Status::bad_request(why)));
    }
    let known = webhook.review_versions.iter().find(|version| matches!(version.as_str(), "v1" | "v1beta1"));
    let version = known.ok_or_else(|| {
        let why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        Failure::CallFailed(format!("could not create admission objects: {why}"))
    })?;
    let uid = uuid::Uuid::new_v4().to_string();
    let review = review::make(write, call, versioned, version, &uid);
    let destination =
        webhook.destination.as_ref().map_err(|why| Failure::CallFailed(format!("could not get REST client: {why}")))?;
    let body = Bytes::from(review.to_string());
    let mut span = call.running.span(if mutating { "Call mutating webhook" } else { "Call validating webhook" });
    if let Some(span) = &mut span {
        span.text("configuration", &webhook.configuration);
        span.text("webhook", &webhook.name);
        span.text("resource", &call.resource.named().to_string());
        span.text("operation", write.operation.name());
        span.text("UID", &uid);
    }
    let context = span.as_ref().map(knarr_traces::Span::context);
    let request = Outgoing { body, timeout: webhook.limit, trace: context, user: webhook.user.as_deref() };
    let response = call.backend.webhook_client.post(&*call.backend.objects, destination, request).await;
    if let (Some(span), Err(error)) = (&mut span, &response) {
        span.failed(&error.to_string());
    }
    drop(span);
    let bytes = response.map_err(|why| Failure::CallFailed(format!("failed to call webhook: {why}")))?;
    let response = review::read(&bytes, version, &uid, mutating, &webhook.name);
    response.map_err(|why| match why {
        review::ReadError::Unreadable(why) => Failure::CallFailed(format!("failed to call webhook: {why}")),
        review::ReadError::Invalid(why) => Failure::CallFailed(format!("received invalid webhook response: {why}")),
        review::ReadError::Patch(why) => {
            Failure::CallFailed(format!("received undecodable patch in webhook response: {why}"))
        }
        review::ReadError::PatchType(kind) => Failure::CallFailed(format!("unsupported patch type {kind:?}")),
    })
}
