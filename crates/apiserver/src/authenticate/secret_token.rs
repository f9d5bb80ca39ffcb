//! Service-account tokens stored in Secrets, valid for as long as the Secret exists ("legacy tokens" in Kubernetes). A label
//! records the day of each token's last use, so that unused ones can be found. A token marked invalid is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::loopback;
use crate::state::ApiServer;

const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// The warning to clients that use an auto-generated token.
const WARNING: &str = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.";

/// Uses of tokens that are not yet recorded on their Secrets, by namespace and name.
#[derive(Default)]
pub struct TokenUseTracker {
    pending: Mutex<BTreeMap<(String, String), Value>>,
    changed: Notify,
}

impl TokenUseTracker {
    /// Checks whether a token bound to a Secret may be used; returns a warning for its client, if any.
    pub fn check(
        &self,
        token: &str,
        secret: &Value,
        account: &Value,
        now: Timestamp,
    ) -> Result<Option<&'static str>, String> {
        let stored = STANDARD.decode(secret.text(&["data", "token"])).unwrap_or_default();
        if secret.text(&["type"]) != SECRET_TYPE || Sha256::digest(stored) != Sha256::digest(token) {
            return Ok(None);
        }
        if secret.has(&["metadata", "deletionTimestamp"]) {
            return Err("Token has been invalidated".to_owned());
        }
        self.track(secret, now);
        let (namespace, name) = (secret.text(&["metadata", "namespace"]), secret.text(&["metadata", "name"]));
        if !secret.text(&["metadata", "labels", INVALID_SINCE]).is_empty() {
            let account = account.text(&["metadata", "name"]);
            return Err(format!(
                "the token in secret {namespace}/{name} for service account {namespace}/{account} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of this token"
            ));
        }
        let is_listed = account.items(&["secrets"]).iter().any(|listed| listed.text(&["name"]) == name);
        Ok(is_listed.then_some(WARNING))
    }

    fn track(&self, secret: &Value, now: Timestamp) {
        let today = day(now);
        let tomorrow = day(now.saturating_add(SignedDuration::from_hours(24)).unwrap_or(now));
        let named = secret.text(&["metadata", "labels", LAST_USED]);
        if named == today || named == tomorrow {
            return;
        }
        let (namespace, name) = (secret.text(&["metadata", "namespace"]), secret.text(&["metadata", "name"]));
        let patch = json!({"metadata": {"uid": secret.text(&["metadata", "uid"]), "labels": {LAST_USED: today}}});
        self.pending.lock().insert((namespace.to_owned(), name.to_owned()), patch);
        self.changed.notify_one();
    }
}

/// Records uses of tokens on their Secrets until the server stops.
pub async fn record_token_uses(server: Arc<ApiServer>) {
    let mut stopping = server.stopping.clone();
    let uses = &server.security.service_accounts.uses;
    loop {
        tokio::select! {
            () = uses.changed.notified() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let pending = std::mem::take(&mut *uses.pending.lock());
        for ((namespace, name), patch) in pending {
            let path = loopback::ObjectPath {
                group: "",
                version: "v1",
                plural: "secrets",
                namespace: &namespace,
                name: &name,
            };
            // The next use of the token retries.
            if let Err(status) = loopback::send(&server, Method::PATCH, &path, &patch).await {
                tracing::warn!(namespace, name, %status, "cannot record the use of a token on its secret");
            }
        }
    }
}

/// Publishes since when uses of tokens are tracked: a token without a recorded use may have been used before that day.
pub async fn publish_tracking_start(server: &Arc<ApiServer>, now: Timestamp) -> Result<(), knarr_api::status::Status> {
    const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
    const NAMESPACE: &str = "kube-system";
    let existing = server.objects.get("", "configmaps", NAMESPACE, NAME);
    let since = existing.as_ref().map_or("", |existing| existing.text(&["data", "since"]));
    if since.parse::<jiff::civil::Date>().is_ok() {
        return Ok(());
    }
    let path =
        loopback::ObjectPath { group: "", version: "v1", plural: "configmaps", namespace: NAMESPACE, name: NAME };
    let data = json!({"since": day(now)});
    match existing {
        Some(_) => loopback::send(server, Method::PATCH, &path, &json!({"data": data})).await,
        None => {
            let metadata = json!({"name": NAME, "namespace": NAMESPACE});
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
            loopback::send(server, Method::POST, &path, &object).await
        }
    }
}

fn day(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_a_token_is_recorded_once_a_day() {
        let now: Timestamp = "2026-03-01T23:30:00Z".parse().unwrap();
        let account = |secret: &str| json!({"metadata": {"name": "sa"}, "secrets": [{"name": secret}]});
        let secret = |kind: &str, labels: Value, extra: Value| {
            let mut secret = json!({"type": kind, "data": {"token": STANDARD.encode("t")},
                "metadata": {"name": "s", "namespace": "n", "uid": "1", "labels": labels}});
            secret["metadata"].as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            secret
        };
        let plain = json!({});
        let deleted = json!({"deletionTimestamp": "2026-03-01T23:00:00Z"});
        for (name, token, secret, account, good, warned, noted) in [
            ("by hand", "t", secret(SECRET_TYPE, json!({}), plain.clone()), account("x"), true, false, true),
            ("listed", "t", secret(SECRET_TYPE, json!({}), plain.clone()), account("s"), true, true, true),
            ("another token", "u", secret(SECRET_TYPE, json!({}), plain.clone()), account("s"), true, false, false),
            ("another kind", "t", secret("Opaque", json!({}), plain.clone()), account("s"), true, false, false),
            (
                "today",
                "t",
                secret(SECRET_TYPE, json!({LAST_USED: "2026-03-01"}), plain.clone()),
                account("x"),
                true,
                false,
                false,
            ),
            (
                "tomorrow",
                "t",
                secret(SECRET_TYPE, json!({LAST_USED: "2026-03-02"}), plain.clone()),
                account("x"),
                true,
                false,
                false,
            ),
            (
                "yesterday",
                "t",
                secret(SECRET_TYPE, json!({LAST_USED: "2026-02-28"}), plain.clone()),
                account("x"),
                true,
                false,
                true,
            ),
            (
                "invalid",
                "t",
                secret(SECRET_TYPE, json!({INVALID_SINCE: "2026-01-01"}), plain),
                account("s"),
                false,
                false,
                true,
            ),
            ("going", "t", secret(SECRET_TYPE, json!({}), deleted), account("s"), false, false, false),
        ] {
            let uses = TokenUseTracker::default();
            let checked = uses.check(token, &secret, &account, now);
            assert_eq!((checked.is_ok(), checked.ok().flatten().is_some()), (good, warned), "{name}");
            let pending = uses.pending.lock();
            let patch = pending.get(&("n".to_owned(), "s".to_owned()));
            let label = patch.map(|patch| patch.text(&["metadata", "labels", LAST_USED]).to_owned());
            assert_eq!(label, noted.then(|| "2026-03-01".to_owned()), "{name}");
        }
    }
}
