//! Removes tokens that nobody should use any more: generated ones unused for long, and expired bootstrap tokens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::jiff::civil::Date;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::{Change, Informer, WorkQueue, run_workers, time};
use kube::Api;
use serde_json::json;

use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace};
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

/// The name of the account a token is for, and its uid if the token names one.
pub(crate) fn account_of(secret: &Secret) -> Option<(&str, Option<&str>)> {
    let annotations = secret.metadata.annotations.as_ref()?;
    let wanted = annotations.get(ACCOUNT_UID).map(String::as_str).filter(|uid| !uid.is_empty());
    Some((annotations.get(ACCOUNT_NAME)?, wanted))
}

/// Marks generated tokens that were not used for long as invalid, and deletes them when they stayed so as long again.
pub async fn run_legacy(context: Context) {
    const EVERY: Duration = Duration::from_secs(24 * 3600);
    let secrets = account_tokens(&context);
    let accounts = context.informers.of::<ServiceAccount>();
    let pods = context.informers.of::<Pod>();
    secrets.synced().await;
    accounts.synced().await;
    pods.synced().await;
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        ticks.tick().await;
        if let Err(error) = clean_up(&context, &secrets, &accounts, &pods).await {
            tracing::debug!(%error, "cannot clean up unused tokens; next time");
        }
    }
}

async fn clean_up(
    context: &Context,
    secrets: &Informer<Secret>,
    accounts: &Informer<ServiceAccount>,
    pods: &Informer<Pod>,
) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), "kube-system");
    let since = maps.get_opt(TRACKING).await?.and_then(|map| date(map.data?.get("since")?));
    let period = SignedDuration::try_from(context.settings.legacy_token_clean_up_period).unwrap_or(SignedDuration::MAX);
    let now = context.clock.now();
    // Use has not been recorded for long enough to tell.
    let Some(since) = since.filter(|since| now.duration_since(*since) >= period) else { return Ok(()) };
    for secret in secrets.list() {
        let Some((account, _)) = account_of(&secret) else { continue };
        let generated = accounts.get(namespace(&*secret), account).is_some_and(|account| {
            account.secrets.iter().flatten().any(|reference| reference.name.as_deref() == Some(name(&*secret)))
        });
        if !generated || mounted(pods, &secret) {
            continue;
        }
        match judge(&secret, since, now, period) {
            Verdict::Keep => {}
            Verdict::Invalidate => {
                let today = now.to_zoned(TimeZone::UTC).date().to_string();
                let patch = json!({"metadata": {"resourceVersion": secret.metadata.resource_version, "labels": {INVALID_SINCE: today}}});
                ignore_not_found(merge_patch(&context.client, &*secret, patch).await)?;
            }
            Verdict::Delete => delete(&context.client, &*secret, None).await?,
        }
    }
    Ok(())
}

fn date(text: &str) -> Option<Timestamp> {
    let date: Date = text.parse().ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

fn mounted(pods: &Informer<Pod>, secret: &Secret) -> bool {
    let used: BTreeSet<String> = pods
        .in_namespace(namespace(secret))
        .iter()
        .flat_map(|pod| pod.spec.iter().flat_map(|spec| spec.volumes.clone().unwrap_or_default()).collect::<Vec<_>>())
        .filter_map(|volume| volume.secret?.secret_name)
        .collect();
    used.contains(name(secret))
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Keep,
    Invalidate,
    Delete,
}

fn judge(secret: &Secret, tracked_since: Timestamp, now: Timestamp, period: SignedDuration) -> Verdict {
    let label =
        |key: &str| secret.metadata.labels.as_ref().and_then(|labels| labels.get(key)).and_then(|text| date(text));
    let created = secret.metadata.creation_timestamp.as_ref().map_or(now, |at| at.0);
    let last = label(LAST_USED).unwrap_or_else(|| created.max(tracked_since));
    if now.duration_since(last) < period || now.duration_since(created) < period {
        return Verdict::Keep;
    }
    match label(INVALID_SINCE) {
        None => Verdict::Invalidate,
        Some(invalid) if now.duration_since(invalid) >= period => Verdict::Delete,
        Some(_) => Verdict::Keep,
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

    #[test]
    fn unused_tokens_are_invalidated_and_then_deleted() {
        let secret = |labels: Value, created: &str| -> Secret {
            serde_json::from_value(
                json!({"metadata": {"labels": labels, "creationTimestamp": format!("{created}T00:00:00Z")}}),
            )
            .unwrap()
        };
        let (since, now) = (date("2024-01-01").unwrap(), date("2026-06-01").unwrap());
        let year = SignedDuration::from_hours(365 * 24);
        for (labels, created, verdict) in [
            (json!({}), "2026-01-01", Verdict::Keep),
            (json!({}), "2023-01-01", Verdict::Invalidate),
            (json!({(LAST_USED): "2026-05-01"}), "2023-01-01", Verdict::Keep),
            (json!({(LAST_USED): "2025-01-01"}), "2023-01-01", Verdict::Invalidate),
            (json!({(INVALID_SINCE): "2026-05-01"}), "2023-01-01", Verdict::Keep),
            (json!({(INVALID_SINCE): "2025-05-01"}), "2023-01-01", Verdict::Delete),
        ] {
            assert_eq!(judge(&secret(labels.clone(), created), since, now, year), verdict, "{labels} {created}");
        }
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
        assert_eq!(expiration(&token), date("2026-01-01"));
    }
}
