//! Deletes tokens that must not be used any more: generated ones unused for long, and expired bootstrap tokens.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::jiff::civil::Date;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::{Change, Informer, WorkQueue, run_workers, time};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Preconditions};
use serde_json::{Value, json};

use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace, uid};
use crate::common::requests::{delete, merge_patch};
use crate::error::{Error, Result, ignore_not_found};

const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
pub(crate) const BOOTSTRAP_TOKEN: &str = "bootstrap.kubernetes.io/token";
pub(crate) const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
pub(crate) const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

pub(crate) fn account_tokens(context: &Context) -> Arc<Informer<Secret>> {
    context.informers.selected::<Secret>(&format!("type={ACCOUNT_TOKEN}"), "")
}

/// The name of the account a token is for, and its uid if the secret has one.
pub(crate) fn account_of(secret: &Secret) -> Option<(&str, Option<&str>)> {
    let annotations = secret.metadata.annotations.as_ref()?;
    let desired = annotations.get(ACCOUNT_UID).map(String::as_str).filter(|uid| !uid.is_empty());
    Some((annotations.get(ACCOUNT_NAME)?, desired))
}

/// Marks generated tokens unused for long as invalid, and deletes them after as much time again.
pub async fn run_legacy(context: Context) {
    const INTERVAL: Duration = Duration::from_secs(24 * 3600);
    let secrets = account_tokens(&context);
    let accounts = context.informers.of::<ServiceAccount>();
    secrets.synced().await;
    accounts.synced().await;
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        if let Err(error) = clean_up(&context, &secrets, &accounts).await {
            tracing::debug!(%error, "cannot clean up unused tokens; retrying in the next interval");
        }
    }
}

async fn clean_up(context: &Context, secrets: &Informer<Secret>, accounts: &Informer<ServiceAccount>) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), "kube-system");
    let since = maps.get_opt(TRACKING).await?.and_then(|map| map.data?.get("since")?.parse().ok());
    let period = SignedDuration::try_from(context.settings.legacy_token_clean_up_period).unwrap_or(SignedDuration::MAX);
    let now = context.clock.now();
    let Some(limit) = since.and_then(|since| limit(since, now, period)) else { return Ok(()) };
    let mut mounted: HashMap<String, BTreeSet<String>> = HashMap::new();
    for secret in secrets.list() {
        let verdict = evaluate(&secret, limit);
        if verdict == Verdict::Keep || !is_generated(&secret, accounts) {
            continue;
        }
        let namespace = namespace(&*secret);
        if !mounted.contains_key(namespace) {
            mounted.insert(namespace.to_owned(), used_secrets(context, namespace).await?);
        }
        if mounted[namespace].contains(name(&*secret)) {
            continue;
        }
        let done = if verdict == Verdict::Invalidate {
            invalidate(context, &secret, now).await
        } else {
            remove(context, &secret).await
        };
        if let Err(error) = done {
            tracing::debug!(secret = name(&*secret), %error, "cannot clean up an unused token; retrying in the next interval");
        }
    }
    Ok(())
}

/// Whether the token was generated for its account rather than created by a user.
fn is_generated(secret: &Secret, accounts: &Informer<ServiceAccount>) -> bool {
    let Some((account, desired)) = account_of(secret) else { return false };
    let account = accounts
        .get(namespace(secret), account)
        .filter(|account| desired.is_none_or(|desired| desired == uid(&**account)));
    account.is_some_and(|account| {
        account.secrets.iter().flatten().any(|reference| reference.name.as_deref() == Some(name(secret)))
    })
}

async fn invalidate(context: &Context, secret: &Secret, now: Timestamp) -> Result<()> {
    let today = now.to_zoned(TimeZone::UTC).date().to_string();
    let patch = json!({"metadata": {"uid": uid(secret), "labels": {INVALID_SINCE: today}}});
    ignore_not_found(merge_patch(&context.client, secret, patch).await)?;
    Ok(())
}

/// A token that was used meanwhile stays.
async fn remove(context: &Context, secret: &Secret) -> Result<()> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace(secret));
    let preconditions = Preconditions { uid: None, resource_version: secret.metadata.resource_version.clone() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    ignore_not_found(api.delete(name(secret), &params).await)?;
    Ok(())
}

/// The secrets that pods of the namespace use, read from the server: the cache holds only some fields of a pod. They are read
/// as informers read: the controller's own account may not.
async fn used_secrets(context: &Context, namespace: &str) -> Result<BTreeSet<String>> {
    let api: Api<Pod> = Api::namespaced(context.informers.client().clone(), namespace);
    let pods = api.list(&ListParams::default()).await?;
    let mut used = BTreeSet::new();
    for spec in pods.items.into_iter().filter_map(|pod| pod.spec) {
        names_of_secrets(&serde_json::to_value(spec)?, &mut used);
    }
    Ok(used)
}

/// Secrets are referenced in many places of a pod, always under one of few field names.
fn names_of_secrets(value: &Value, found: &mut BTreeSet<String>) {
    const REFERENCES: [&str; 3] = ["secretRef", "secretKeyRef", "nodePublishSecretRef"];
    match value {
        Value::Array(items) => items.iter().for_each(|item| names_of_secrets(item, found)),
        Value::Object(fields) => {
            for (key, field) in fields {
                match (key.as_str(), field) {
                    ("secretName", Value::String(name)) => drop(found.insert(name.clone())),
                    ("imagePullSecrets", Value::Array(items)) => {
                        found.extend(items.iter().filter_map(|item| item["name"].as_str()).map(str::to_owned));
                    }
                    (reference, Value::Object(_)) if REFERENCES.contains(&reference) => {
                        found.extend(field["name"].as_str().map(str::to_owned));
                    }
                    // A projected secret has the name itself.
                    ("secret", Value::Object(secret)) => {
                        found.extend(secret.get("name").and_then(Value::as_str).map(str::to_owned));
                        names_of_secrets(field, found);
                    }
                    _ => names_of_secrets(field, found),
                }
            }
        }
        _ => {}
    }
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Keep,
    Invalidate,
    Delete,
}

/// Tokens last used before this date are unused; `None` if uses have not been recorded for long enough.
fn limit(tracked_since: Date, now: Timestamp, period: SignedDuration) -> Option<Timestamp> {
    let first_whole_day = tracked_since.tomorrow().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp();
    let limit = now.checked_sub(period).ok()?;
    (limit >= first_whole_day).then_some(limit)
}

fn evaluate(secret: &Secret, limit: Timestamp) -> Verdict {
    let label = |key: &str| secret.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let created = secret.metadata.creation_timestamp.as_ref();
    if secret.metadata.deletion_timestamp.is_some() || created.is_none_or(|at| at.0 >= limit) {
        return Verdict::Keep;
    }
    let day = limit.to_zoned(TimeZone::UTC).date();
    // An unreadable date counts as used yesterday.
    if label(LAST_USED).is_some_and(|text| text.parse::<Date>().map_or(true, |used| used >= day)) {
        return Verdict::Keep;
    }
    match label(INVALID_SINCE).and_then(|text| text.parse::<Date>().ok()) {
        None => Verdict::Invalidate,
        Some(invalid) if invalid >= day => Verdict::Keep,
        Some(_) => Verdict::Delete,
    }
}

/// Deletes bootstrap tokens when they expire.
pub async fn run_bootstrap(context: Context) {
    let secrets = context.informers.selected::<Secret>(&format!("type={BOOTSTRAP_TOKEN}"), "");
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_secret = queue.clone();
    secrets.on_change(move |change| {
        let is_system = namespace(&**change.latest()) == "kube-system";
        if is_system && !matches!(change, Change::Deleted(_)) {
            on_secret.add(Key::of(&**change.latest()));
        }
    });
    secrets.synced().await;
    let again = queue.clone();
    run_workers(queue, 1, move |key: Key| {
        let (context, secret, again) = (context.clone(), secrets.get(&key.namespace, &key.name), again.clone());
        async move {
            let Some(secret) = secret else { return Ok::<(), Error>(()) };
            let (Some(at), now) = (expiration(&secret), context.clock.now()) else { return Ok(()) };
            if at > now {
                again.add_after(key, time::until(now, at));
                return Ok(());
            }
            delete(&context.client, &*secret, None).await
        }
    })
    .await;
}

pub(crate) fn expiration(secret: &Secret) -> Option<Timestamp> {
    let text = secret.data.as_ref()?.get("expiration")?;
    std::str::from_utf8(&text.0).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn day(text: &str) -> Timestamp {
        format!("{text}T00:00:00Z").parse().unwrap()
    }

    #[test]
    fn unused_tokens_are_invalidated_and_then_deleted() {
        let secret = |labels: Value, created: &str| -> Secret {
            serde_json::from_value(json!({"metadata": {"labels": labels, "creationTimestamp": day(created)}})).unwrap()
        };
        for (labels, created, verdict) in [
            (json!({}), "2026-01-01", Verdict::Keep),
            (json!({}), "2023-01-01", Verdict::Invalidate),
            (json!({(LAST_USED): "2026-05-01"}), "2023-01-01", Verdict::Keep),
            (json!({(LAST_USED): "2025-06-01"}), "2023-01-01", Verdict::Keep),
            (json!({(LAST_USED): "2025-05-31"}), "2023-01-01", Verdict::Invalidate),
            (json!({(LAST_USED): "lately"}), "2023-01-01", Verdict::Keep),
            (json!({(INVALID_SINCE): "2026-05-01"}), "2023-01-01", Verdict::Keep),
            (json!({(INVALID_SINCE): "2025-05-01"}), "2023-01-01", Verdict::Delete),
            (json!({(INVALID_SINCE): "lately"}), "2023-01-01", Verdict::Invalidate),
        ] {
            assert_eq!(evaluate(&secret(labels.clone(), created), day("2025-06-01")), verdict, "{labels} {created}");
        }
    }

    #[test]
    fn uses_must_have_been_recorded_for_the_whole_period() {
        let since: Date = "2025-01-01".parse().unwrap();
        let year = SignedDuration::from_hours(365 * 24);
        assert_eq!(limit(since, day("2026-01-01"), year), None);
        assert_eq!(limit(since, day("2026-01-02"), year), Some(day("2025-01-02")));
    }

    #[test]
    fn secrets_are_found_wherever_a_pod_names_them() {
        let spec = json!({
            "imagePullSecrets": [{"name": "a"}],
            "containers": [{
                "name": "no",
                "env": [{"name": "no", "valueFrom": {"secretKeyRef": {"name": "b", "key": "no"}}}],
                "envFrom": [{"secretRef": {"name": "c"}}, {"configMapRef": {"name": "no"}}],
            }],
            "volumes": [
                {"name": "no", "secret": {"secretName": "d"}},
                {"name": "no", "projected": {"sources": [{"secret": {"name": "e"}}, {"configMap": {"name": "no"}}]}},
                {"name": "no", "csi": {"driver": "no", "nodePublishSecretRef": {"name": "f"}}},
                {"name": "no", "azureFile": {"secretName": "g", "shareName": "no"}},
                {"name": "no", "cephfs": {"secretRef": {"name": "h"}}},
            ],
        });
        let mut found = BTreeSet::new();
        names_of_secrets(&spec, &mut found);
        assert_eq!(found.into_iter().collect::<String>(), "abcdefgh");
    }

    #[test]
    fn tokens_name_their_account() {
        let secret: Secret =
            serde_json::from_value(json!({"metadata": {"annotations": {(ACCOUNT_NAME): "a", (ACCOUNT_UID): "u"}}}))
                .unwrap();
        assert_eq!(account_of(&secret), Some(("a", Some("u"))));
        assert_eq!(account_of(&Secret::default()), None);
        let token: Secret =
            serde_json::from_value(json!({"data": {"expiration": "MjAyNi0wMS0wMVQwMDowMDowMFo="}})).unwrap();
        assert_eq!(expiration(&token), Some(day("2026-01-01")));
    }
}
