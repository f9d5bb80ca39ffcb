//! Asking one webhook.

use bytes::Bytes;
use knarr_api::status::Status;

use super::configuration::Webhook;
use super::review::{self, Answer};
use crate::admit::Write;
use crate::admit::dynamic::versioned::Versioned;
use crate::resource_request::ResourceRequest;

/// Why a webhook did not agree.
#[derive(Debug)]
pub enum Failure {
    /// It was not reached, or did not answer as it should.
    Uncalled(String),
    /// It refused, or cannot be asked.
    Refused(Status),
}

/// Sends the write to a webhook and reads what it says.
pub async fn ask(
    webhook: &Webhook,
    write: &Write<'_>,
    call: &ResourceRequest<'_>,
    versioned: &Versioned,
    mutating: bool,
) -> Result<Answer, Failure> {
    if write.dry_run && !webhook.takes_dry_runs {
        let why = format!("admission webhook {:?} does not support dry run", webhook.name);
        return Err(Failure::Refused(Status::bad_request(why)));
    }
    let known = webhook.review_versions.iter().find(|version| matches!(version.as_str(), "v1" | "v1beta1"));
    let version = known.ok_or_else(|| {
        let why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        Failure::Uncalled(format!("could not create admission objects: {why}"))
    })?;
    let uid = uuid::Uuid::new_v4().to_string();
    let review = review::make(write, call, versioned, version, &uid);
    let destination =
        webhook.destination.as_ref().map_err(|why| Failure::Uncalled(format!("could not get REST client: {why}")))?;
    let server = call.server;
    let body = Bytes::from(review.to_string());
    let answered = server.webhook_client.post(&*server.objects, destination, body, webhook.limit).await;
    let bytes = answered.map_err(|why| Failure::Uncalled(format!("failed to call webhook: {why}")))?;
    let answer = review::read(&bytes, version, &uid, mutating, &webhook.name);
    answer.map_err(|why| match why {
        review::ReadError::Unreadable(why) => Failure::Uncalled(format!("failed to call webhook: {why}")),
        review::ReadError::Invalid(why) => Failure::Uncalled(format!("received invalid webhook response: {why}")),
        review::ReadError::Patch(why) => {
            Failure::Uncalled(format!("received undecodable patch in webhook response: {why}"))
        }
        review::ReadError::PatchType(kind) => Failure::Uncalled(format!("unsupported patch type {kind:?}")),
    })
}
