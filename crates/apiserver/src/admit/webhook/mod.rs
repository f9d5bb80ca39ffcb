//! Admission webhooks: external servers that change or refuse the writes that match their configuration.

mod call;
mod configuration;
mod plugin_configuration;
mod review;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::join_all;
use knarr_api::status::{GroupResource, Status};
use serde_json::Value;

use super::dynamic::activation::{Input, RequestAuthority};
use super::dynamic::cached::Cached;
use super::dynamic::criteria::Matched;
use super::dynamic::versioned::Versioned;
use super::dynamic::{is_exempt, request};
use super::{Operation, Plugin, Write};
use crate::metrics::WEBHOOK_DURATION;
use crate::object_reader::ObjectReader;
use crate::outbound::WebhookUsers;
use crate::resource_request::ResourceRequest;
use call::Failure;
use configuration::Webhook;
pub use plugin_configuration::configured_users;
use review::ReviewResponse;

/// Webhooks that may change objects. They are called one after the other.
pub struct MutatingWebhooks(Cached<Vec<Webhook>>, Arc<WebhookUsers>);

/// Webhooks that may only refuse. They are called in parallel.
pub struct ValidatingWebhooks(Cached<Vec<Webhook>>, Arc<WebhookUsers>);

impl MutatingWebhooks {
    pub fn new(users: Arc<WebhookUsers>) -> Self {
        MutatingWebhooks(Cached::new(&["mutatingwebhookconfigurations"]), users)
    }
}

impl ValidatingWebhooks {
    pub fn new(users: Arc<WebhookUsers>) -> Self {
        ValidatingWebhooks(Cached::new(&["validatingwebhookconfigurations"]), users)
    }
}

#[async_trait]
impl Plugin for MutatingWebhooks {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        has_any(&self.0, &self.1, "mutatingwebhookconfigurations", write)
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(call) = write.call else { return Ok(()) };
        let read = |objects: &dyn ObjectReader| configuration::read(objects, "mutatingwebhookconfigurations", &self.1);
        let webhooks = self.0.get(objects, read)?;
        let is_second_round = write.reinvocation.is_second_round;
        write.reinvocation.webhooks.start_round(is_second_round, write.object);
        for (index, webhook) in webhooks.iter().enumerate() {
            let Some(mut versioned) = matching_version(webhook, write, call, objects).await? else { continue };
            if !write.reinvocation.webhooks.should_invoke(is_second_round, &webhook.key) {
                continue;
            }
            let round = u8::from(is_second_round);
            let started = Instant::now();
            let outcome = mutate(webhook, write, call, &mut versioned, (round, index)).await;
            record(webhook, write.operation, "admit", outcome.is_err(), started.elapsed());
            call.running.waited(started.elapsed());
            let changed = matches!(outcome, Ok(true));
            if changed {
                versioned.write_back(write, call).await?;
                write.reinvocation.webhooks.require_all();
                write.reinvocation.is_required = true;
            }
            annotate(call, webhook, changed, (round, index));
            if webhook.reinvoked {
                write.reinvocation.webhooks.record_invocation(&webhook.key);
            }
            if let Err(failure) = outcome {
                let key = format!("failed-open.mutation.webhook.admission.k8s.io/round_{round}_index_{index}");
                apply_failure_policy(webhook, call, failure, &key)?;
            }
        }
        write.reinvocation.webhooks.end_round(write.object);
        Ok(())
    }
}

/// Calls a mutating webhook; true if it changed the object.
async fn mutate(
    webhook: &Webhook,
    write: &mut Write<'_>,
    call: &ResourceRequest<'_>,
    versioned: &mut Versioned,
    (round, index): (u8, usize),
) -> Result<bool, Failure> {
    let response = call::call(webhook, write, call, versioned, true).await?;
    write.warnings.extend(response.warnings.iter().cloned());
    for (key, value) in &response.annotations {
        call.annotate(format!("{}/{key}", webhook.name), value.clone());
    }
    let response = response.allowed()?;
    let Some(patch) = response.patch else { return Ok(false) };
    if versioned.object.is_null() {
        let why = format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            webhook.name
        );
        return Err(Failure::Refused(Status::internal(why)));
    }
    let mut patched = versioned.object.clone();
    patch.patch.apply(&mut patched).map_err(|error| Failure::Refused(Status::internal(error)))?;
    let key = format!("patch.webhook.admission.k8s.io/round_{round}_index_{index}");
    let description = serde_json::json!({
        "configuration": webhook.configuration, "webhook": webhook.name, "patch": patch.text, "patchType": "JSONPatch",
    });
    call.annotate_request(key, description.to_string());
    let before = versioned.object.clone();
    versioned.accept(write, call, &patched).map_err(Failure::Refused)?;
    Ok(versioned.object != before)
}

fn annotate(call: &ResourceRequest<'_>, webhook: &Webhook, mutated: bool, (round, index): (u8, usize)) {
    let key = format!("mutation.webhook.admission.k8s.io/round_{round}_index_{index}");
    let description = serde_json::json!({
        "configuration": webhook.configuration, "webhook": webhook.name, "mutated": mutated,
    });
    call.annotate(key, description.to_string());
}

#[async_trait]
impl Plugin for ValidatingWebhooks {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        has_any(&self.0, &self.1, "validatingwebhookconfigurations", write)
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(call) = write.call else { return Ok(()) };
        let read =
            |objects: &dyn ObjectReader| configuration::read(objects, "validatingwebhookconfigurations", &self.1);
        let webhooks = self.0.get(objects, read)?;
        let mut matching = Vec::new();
        for webhook in webhooks.iter() {
            if let Some(versioned) = matching_version(webhook, write, call, objects).await? {
                matching.push((webhook, versioned));
            }
        }
        let (shared, all_started) = (&*write, Instant::now());
        let outcomes = join_all(matching.iter().map(|(webhook, versioned)| async move {
            let started = Instant::now();
            let outcome = call::call(webhook, shared, call, versioned, false).await;
            let is_allowed = outcome.as_ref().is_ok_and(ReviewResponse::is_allowed);
            record(webhook, shared.operation, "validating", !is_allowed, started.elapsed());
            (*webhook, outcome)
        }))
        .await;
        call.running.waited(all_started.elapsed());
        let mut refusal = None;
        for (index, (webhook, outcome)) in outcomes.into_iter().enumerate() {
            let outcome = outcome.and_then(|response| {
                write.warnings.extend(response.warnings.iter().cloned());
                for (key, value) in &response.annotations {
                    call.annotate(format!("{}/{key}", webhook.name), value.clone());
                }
                response.allowed().map(drop)
            });
            if let Err(failure) = outcome {
                let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
                if let Err(status) = apply_failure_policy(webhook, call, failure, &key) {
                    refusal.get_or_insert(status);
                }
            }
        }
        refusal.map_or(Ok(()), Err)
    }
}

/// Records a call. Configurations of administrators name webhooks, so that the names are few.
fn record(webhook: &Webhook, operation: Operation, kind: &str, rejected: bool, took: Duration) {
    let rejected = if rejected { "true" } else { "false" };
    WEBHOOK_DURATION.observe(&[&webhook.name, operation.name(), rejected, kind], took.as_secs_f64());
}

fn has_any(cached: &Cached<Vec<Webhook>>, users: &WebhookUsers, resource: &'static str, write: &Write<'_>) -> bool {
    let Some(call) = write.call else { return false };
    let webhooks = cached.get(&*call.backend.objects, |objects| configuration::read(objects, resource, users));
    // Unreadable configurations are handled too: the plugin then refuses the write.
    webhooks.map_or(true, |webhooks| !webhooks.is_empty()) && !is_exempt(write)
}

/// The write in the version that a webhook matches; `None` if it does not match.
async fn matching_version(
    webhook: &Webhook,
    write: &Write<'_>,
    call: &ResourceRequest<'_>,
    objects: &dyn ObjectReader,
) -> Result<Option<Versioned>, Status> {
    let Some(matched) = webhook.criteria.matches(write, call, objects)? else { return Ok(None) };
    let versioned = Versioned::new(write, call, matched).await?;
    if webhook.conditions.is_empty() {
        return Ok(Some(versioned));
    }
    match conditions_hold(webhook, write, call, &versioned, &versioned.matched) {
        Ok(true) => Ok(Some(versioned)),
        Ok(false) => Ok(None),
        Err(why) => {
            let kind = &call.resource.kind;
            Err(Status::forbidden(GroupResource { group: &kind.group, name: &kind.plural }, write.known_name(), &why))
        }
    }
}

fn conditions_hold(
    webhook: &Webhook,
    write: &Write<'_>,
    call: &ResourceRequest<'_>,
    versioned: &Versioned,
    matched: &Matched,
) -> Result<bool, String> {
    let description = Value::Object(request::describe(write, matched, call.operation_options(write.operation)));
    let authority = RequestAuthority { call, subresource: write.subresource, name: write.known_name() };
    webhook.conditions.hold(&Input {
        object: &versioned.object,
        old: &versioned.old,
        request: &description,
        parameter: None,
        namespace: &Value::Null,
        authorizer: &authority,
    })
}

/// Converts a failure to an error: a refusal always is one, a failed call only if the failure policy says so.
fn apply_failure_policy(
    webhook: &Webhook,
    call: &ResourceRequest<'_>,
    failure: Failure,
    open_key: &str,
) -> Result<(), Status> {
    match failure {
        Failure::Refused(status) => Err(status),
        Failure::CallFailed(why) if webhook.ignores_failure => {
            tracing::warn!(webhook = webhook.name, %why, "failed calling webhook, failing open");
            call.annotate(open_key.to_owned(), webhook.name.clone());
            Ok(())
        }
        Failure::CallFailed(why) => Err(Status::internal(format!("failed calling webhook {:?}: {why}", webhook.name))),
    }
}
