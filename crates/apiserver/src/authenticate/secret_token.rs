//! Service-account tokens stored in Secrets, valid for as long as the Secret exists ("legacy tokens" in Kubernetes). A label
//! records the day of each token's last use, so that unused ones can be found. A token marked invalid is refused.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

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

    /// Waits for uses that are not recorded, and returns the patch of each Secret by its namespace and name.
    pub(crate) async fn unrecorded(&self) -> BTreeMap<(String, String), Value> {
        self.changed.notified().await;
        std::mem::take(&mut *self.pending.lock())
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

/// The date that labels have.
pub(crate) fn day(at: Timestamp) -> String {
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
