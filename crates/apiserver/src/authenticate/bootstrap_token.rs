//! Bootstrap tokens: `ID.SECRET`, stored as Secrets in kube-system, with which new nodes join the cluster.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::object_reader::ObjectReader;
use crate::request::User;

const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";

/// The user of the token; `None` if it is no bootstrap token, unknown, expired or not enabled for authentication.
pub fn user(token: &str, objects: &dyn ObjectReader, now: Timestamp) -> Option<User> {
    let (id, secret) = token.split_once('.')?;
    let form = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    if !form(id, 6) || !form(secret, 16) {
        return None;
    }
    let stored = objects.get("", "secrets", "kube-system", &format!("bootstrap-token-{id}"))?;
    let usable = stored.text(&["type"]) == SECRET_TYPE
        && !stored.has(&["metadata", "deletionTimestamp"])
        && field(&stored, "token-id") == id
        && Sha256::digest(field(&stored, "token-secret")) == Sha256::digest(secret)
        && field(&stored, "usage-bootstrap-authentication") == "true"
        && !is_expired(&field(&stored, "expiration"), now);
    if !usable {
        return None;
    }
    let mut groups = vec![GROUP.to_owned()];
    let extra = field(&stored, "auth-extra-groups");
    groups.extend(extra.split(',').filter(|group| group.starts_with("system:bootstrappers:")).map(str::to_owned));
    Some(User { name: format!("system:bootstrap:{id}"), groups, ..User::default() })
}

fn field(secret: &Value, key: &str) -> String {
    let decoded = STANDARD.decode(secret.text(&["data", key])).unwrap_or_default();
    String::from_utf8(decoded).unwrap_or_default()
}

/// An unparsable time counts as expired.
fn is_expired(expiration: &str, now: Timestamp) -> bool {
    !expiration.is_empty() && knarr_api::time::parse(expiration).is_none_or(|at| at <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[test]
    fn only_a_known_unexpired_token_is_valid() {
        let data = |expiration: &str| {
            let encode = |text: &str| STANDARD.encode(text);
            json!({"metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}, "type": SECRET_TYPE,
                "data": {"token-id": encode("abcdef"), "token-secret": encode("0123456789abcdef"),
                    "usage-bootstrap-authentication": encode("true"), "expiration": encode(expiration),
                    "auth-extra-groups": encode("system:bootstrappers:kubeadm:default-node-token,other")}})
        };
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let authenticate =
            |token: &str, expiration: &str| user(token, &Fixed::new(vec![("", "secrets", data(expiration))]), now);
        let found = authenticate("abcdef.0123456789abcdef", "2026-06-02T00:00:00Z").unwrap();
        assert_eq!(found.name, "system:bootstrap:abcdef");
        assert_eq!(found.groups, ["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"]);
        assert!(authenticate("abcdef.0123456789abcdef", "2026-05-31T00:00:00Z").is_none());
        assert!(authenticate("abcdef.0123456789abcdee", "").is_none());
        assert!(authenticate("nonsense", "").is_none());
    }
}
