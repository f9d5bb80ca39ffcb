//! Webhooks read from their configuration objects.

use std::sync::Arc;
use std::time::Duration;

use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use crate::admit::dynamic::cached;
use crate::admit::dynamic::condition::Conditions;
use crate::admit::dynamic::criteria::Criteria;
use crate::object_reader::ObjectReader;
use crate::outbound::{Destination, User, WebhookUsers};

const DEFAULT_SECONDS: u64 = 10;

/// One webhook of a configuration.
#[derive(Debug)]
pub struct Webhook {
    pub configuration: String,
    pub name: String,
    /// The unique key.
    pub key: String,
    pub criteria: Criteria,
    pub conditions: Conditions,
    pub destination: Result<Destination, String>,
    /// The credentials that it is called with, if any.
    pub user: Option<Arc<User>>,
    /// Whether writes are allowed if the call fails.
    pub ignores_failure: bool,
    /// Whether it may be called for dry runs.
    pub supports_dry_run: bool,
    pub limit: Duration,
    pub review_versions: Vec<String>,
    /// Whether it is reinvoked after later changes by others.
    pub reinvoked: bool,
}

/// All webhooks of all configurations, in call order.
pub fn read(objects: &dyn ObjectReader, resource: &str, users: &WebhookUsers) -> Result<Vec<Webhook>, Status> {
    let configurations = cached::all(objects, resource)?;
    let each = configurations.iter().flat_map(|configuration| {
        let name = configuration.text(&["metadata", "name"]);
        let webhooks = configuration.items(&["webhooks"]).iter().enumerate();
        webhooks.map(move |(at, webhook)| Webhook::read(name, at, webhook, users))
    });
    Ok(each.collect())
}

impl Webhook {
    fn read(configuration: &str, at: usize, webhook: &Value, users: &WebhookUsers) -> Webhook {
        let name = webhook.text(&["name"]).to_owned();
        let ignores_failure = webhook.text(&["failurePolicy"]) == "Ignore";
        let seconds = webhook.integer(&["timeoutSeconds"]).and_then(|seconds| u64::try_from(seconds).ok());
        let versions = webhook.items(&["admissionReviewVersions"]).iter();
        let destination = Destination::of_webhook(webhook.at(&["clientConfig"]));
        let user = destination.as_ref().ok().and_then(|to| users.of(&to.host, to.port)).cloned();
        Webhook {
            key: format!("{configuration}/{name}/{at}"),
            configuration: configuration.to_owned(),
            name,
            criteria: Criteria::read(webhook, "rules"),
            conditions: Conditions::read(webhook.items(&["matchConditions"]), false, ignores_failure),
            destination,
            user,
            ignores_failure,
            supports_dry_run: matches!(webhook.text(&["sideEffects"]), "None" | "NoneOnDryRun"),
            limit: Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS)),
            review_versions: versions.filter_map(Value::as_str).map(str::to_owned).collect(),
            reinvoked: webhook.text(&["reinvocationPolicy"]) == "IfNeeded",
        }
    }
}
