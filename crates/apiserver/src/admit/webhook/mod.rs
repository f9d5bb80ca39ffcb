//! Admission webhooks: servers that change a write, or refuse it, by the rules of their configurations.

mod call;
mod configuration;
mod review;

use async_trait::async_trait;
use futures::future::join_all;
use knarr_api::status::{GroupResource, Status};
use serde_json::Value;

use super::dynamic::activation::{Input, RequestAuthority};
use super::dynamic::cached::Cached;
use super::dynamic::criteria::Matched;
use super::dynamic::versioned::Versioned;
use super::dynamic::{is_exempt, request};
use super::{Plugin, Write};
use crate::object_reader::ObjectReader;
use crate::resource_request::ResourceRequest;
use call::Failure;
use configuration::Webhook;

/// Webhooks that may change what they see. They are asked one after the other.
pub struct MutatingWebhooks(Cached<Vec<Webhook>>);

/// Webhooks that may only refuse. They are asked side by side.
pub struct ValidatingWebhooks(Cached<Vec<Webhook>>);

impl MutatingWebhooks {
    pub fn new() -> Self {
        MutatingWebhooks(Cached::new(&["mutatingwebhookconfigurations"]))
    }
}

impl ValidatingWebhooks {
    pub fn new() -> Self {
        ValidatingWebhooks(Cached::new(&["validatingwebhookconfigurations"]))
    }
}

#[async_trait]
impl Plugin for MutatingWebhooks {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        has_any(&self.0, "mutatingwebhookconfigurations", write)
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(call) = write.call else { return Ok(()) };
        let webhooks = self.0.get(objects, |objects| configuration::read(objects, "mutatingwebhookconfigurations"))?;
        let again = write.reinvocation.again;
        write.reinvocation.webhooks.begin(again, write.object);
        for (index, webhook) in webhooks.iter().enumerate() {
            let Some(mut versioned) = concerned(webhook, write, call, objects).await? else { continue };
            if !write.reinvocation.webhooks.should_ask(again, &webhook.key) {
                continue;
            }
            let round = u8::from(again);
            let outcome = mutate(webhook, write, call, &mut versioned, (round, index)).await;
            let changed = matches!(outcome, Ok(true));
            if changed {
                versioned.write_back(write, call).await?;
                write.reinvocation.webhooks.require();
                write.reinvocation.wanted = true;
            }
            annotate(call, webhook, changed, (round, index));
            if webhook.reinvoked {
                write.reinvocation.webhooks.asked(&webhook.key);
            }
            if let Err(failure) = outcome {
                let key = format!("failed-open.mutation.webhook.admission.k8s.io/round_{round}_index_{index}");
                settle(webhook, call, failure, &key)?;
            }
        }
        write.reinvocation.webhooks.end(write.object);
        Ok(())
    }
}

/// Asks a mutating webhook; true when it changed the object.
async fn mutate(
    webhook: &Webhook,
    write: &mut Write<'_>,
    call: &ResourceRequest<'_>,
    versioned: &mut Versioned,
    (round, index): (u8, usize),
) -> Result<bool, Failure> {
    let answer = call::ask(webhook, write, call, versioned, true).await?;
    write.warnings.extend(answer.warnings.iter().cloned());
    for (key, value) in &answer.annotations {
        call.annotate(format!("{}/{key}", webhook.name), value.clone());
    }
    let answer = answer.allowed()?;
    let Some(patch) = answer.patch else { return Ok(false) };
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
    let told = serde_json::json!({
        "configuration": webhook.configuration, "webhook": webhook.name, "patch": patch.text, "patchType": "JSONPatch",
    });
    call.annotate_request(key, told.to_string());
    let before = versioned.object.clone();
    versioned.accept(write, call, &patched).map_err(Failure::Refused)?;
    Ok(versioned.object != before)
}

fn annotate(call: &ResourceRequest<'_>, webhook: &Webhook, mutated: bool, (round, index): (u8, usize)) {
    let key = format!("mutation.webhook.admission.k8s.io/round_{round}_index_{index}");
    let told = serde_json::json!({
        "configuration": webhook.configuration, "webhook": webhook.name, "mutated": mutated,
    });
    call.annotate(key, told.to_string());
}

#[async_trait]
impl Plugin for ValidatingWebhooks {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        has_any(&self.0, "validatingwebhookconfigurations", write)
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(call) = write.call else { return Ok(()) };
        let webhooks = self.0.get(objects, |objects| configuration::read(objects, "validatingwebhookconfigurations"))?;
        let mut asked = Vec::new();
        for webhook in webhooks.iter() {
            if let Some(versioned) = concerned(webhook, write, call, objects).await? {
                asked.push((webhook, versioned));
            }
        }
        let seen = &*write;
        let answers = join_all(asked.iter().map(|(webhook, versioned)| async move {
            let answered = call::ask(webhook, seen, call, versioned, false).await;
            (*webhook, answered)
        }))
        .await;
        let mut refusal = None;
        for (index, (webhook, answered)) in answers.into_iter().enumerate() {
            let outcome = answered.and_then(|answer| {
                write.warnings.extend(answer.warnings.iter().cloned());
                for (key, value) in &answer.annotations {
                    call.annotate(format!("{}/{key}", webhook.name), value.clone());
                }
                answer.allowed().map(drop)
            });
            if let Err(failure) = outcome {
                let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
                if let Err(status) = settle(webhook, call, failure, &key) {
                    refusal.get_or_insert(status);
                }
            }
        }
        refusal.map_or(Ok(()), Err)
    }
}

fn has_any(cached: &Cached<Vec<Webhook>>, resource: &'static str, write: &Write<'_>) -> bool {
    let Some(call) = write.call else { return false };
    let webhooks = cached.get(&*call.server.objects, |objects| configuration::read(objects, resource));
    // Unreadable configurations are handled too: the plugin then refuses the write.
    webhooks.map_or(true, |webhooks| !webhooks.is_empty()) && !is_exempt(write)
}

/// The write as a webhook is to see it; `None` when it is not concerned.
async fn concerned(
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
    let told = Value::Object(request::describe(write, matched, call.operation_options(write.operation)));
    let authority = RequestAuthority { call, subresource: write.subresource, name: write.known_name() };
    webhook.conditions.hold(&Input {
        object: &versioned.object,
        old: &versioned.old,
        request: &told,
        parameter: None,
        namespace: &Value::Null,
        authorizer: &authority,
    })
}

/// What a webhook that did not agree means: a refusal counts, a failed call only when its policy says so.
fn settle(webhook: &Webhook, call: &ResourceRequest<'_>, failure: Failure, open_key: &str) -> Result<(), Status> {
    match failure {
        Failure::Refused(status) => Err(status),
        Failure::Uncalled(why) if webhook.ignores_failure => {
            tracing::warn!(webhook = webhook.name, %why, "failed calling webhook, failing open");
            call.annotate(open_key.to_owned(), webhook.name.clone());
            Ok(())
        }
        Failure::Uncalled(why) => Err(Status::internal(format!("failed calling webhook {:?}: {why}", webhook.name))),
    }
}
