//! Tokens of service accounts that lie in secrets, good for as long as these exist. Each secret says on which day its token
//! was last used, so that those nobody uses can be found, and one that was marked invalid is refused.

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

/// What clients are told whose token was made by itself for every account, as was usual once.
const WARNING: &str = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.";

/// Secrets whose tokens were used on a day that they do not name yet, by namespace and name.
#[derive(Default)]
pub struct Uses {
    waiting: Mutex<BTreeMap<(String, String), Value>>,
    came: Notify,
}

impl Uses {
    /// Judges a token that is bound to a secret: whether it may be used, and what its user is to be warned of.
    pub fn check(
        &self,
        token: &str,
        secret: &Value,
        account: &Value,
        now: Timestamp,
    ) -> Result<Option<&'static str>, String> {
        let held = STANDARD.decode(secret.text(&["data", "token"])).unwrap_or_default();
        if secret.text(&["type"]) != SECRET_TYPE || Sha256::digest(held) != Sha256::digest(token) {
            return Ok(None);
        }
        if secret.has(&["metadata", "deletionTimestamp"]) {
            return Err("Token has been invalidated".to_owned());
        }
        self.note(secret, now);
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

    fn note(&self, secret: &Value, now: Timestamp) {
        let today = day(now);
        let tomorrow = day(now.saturating_add(SignedDuration::from_hours(24)).unwrap_or(now));
        let named = secret.text(&["metadata", "labels", LAST_USED]);
        if named == today || named == tomorrow {
            return;
        }
        let (namespace, name) = (secret.text(&["metadata", "namespace"]), secret.text(&["metadata", "name"]));
        let patch = json!({"metadata": {"uid": secret.text(&["metadata", "uid"]), "labels": {LAST_USED: today}}});
        self.waiting.lock().insert((namespace.to_owned(), name.to_owned()), patch);
        self.came.notify_one();
    }
}

/// Writes onto secrets that their tokens were used, until the server stops.
pub async fn follow(server: Arc<ApiServer>) {
    let mut stopping = server.stopping.clone();
    let uses = &server.service_accounts.uses;
    loop {
        tokio::select! {
            () = uses.came.notified() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let waiting = std::mem::take(&mut *uses.waiting.lock());
        for ((namespace, name), patch) in waiting {
            let path = loopback::ObjectPath {
                group: "",
                version: "v1",
                plural: "secrets",
                namespace: &namespace,
                name: &name,
            };
            // The next use tries again.
            if let Err(status) = loopback::send(&server, Method::PATCH, &path, &patch).await {
                tracing::warn!(namespace, name, %status, "the use of a token could not be written to its secret");
            }
        }
    }
}

/// Says since when the use of tokens is written down: what was not used since cannot be told from what was never used.
pub async fn publish_since(server: &Arc<ApiServer>, now: Timestamp) -> Result<(), knarr_api::status::Status> {
    const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
    const NAMESPACE: &str = "kube-system";
    let existing = server.objects.get("", "configmaps", NAMESPACE, NAME);
    let said = existing.as_ref().map_or("", |existing| existing.text(&["data", "since"]));
    if said.parse::<jiff::civil::Date>().is_ok() {
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
    fn the_use_of_a_held_token_is_noted_once_a_day() {
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
            let uses = Uses::default();
            let judged = uses.check(token, &secret, &account, now);
            assert_eq!((judged.is_ok(), judged.ok().flatten().is_some()), (good, warned), "{name}");
            let waiting = uses.waiting.lock();
            let patch = waiting.get(&("n".to_owned(), "s".to_owned()));
            let label = patch.map(|patch| patch.text(&["metadata", "labels", LAST_USED]).to_owned());
            assert_eq!(label, noted.then(|| "2026-03-01".to_owned()), "{name}");
        }
    }
}
