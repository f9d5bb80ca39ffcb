//! Tokens with which servers join: whoever holds one receives the keys of the cluster's authorities.
//!
//! Such a token is a Secret of kube-system, and its writer chooses the secret. Without a check, the right to write Secrets
//! there would be the right to everything. So only those who may join a server themselves write such Secrets.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, Decision};
use crate::object_reader::ObjectReader;
use crate::request::{GROUP_AUTHENTICATED, GROUP_MASTERS, Target, User};

/// The path at which servers join.
pub const SERVER_JOIN_PATH: &str = "/server-join";

/// Not a plugin of Kubernetes, where no token gives that much.
pub const NAME: &str = "ServerToken";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

pub struct ServerToken(pub Arc<dyn Authorizer>);

impl ServerToken {
    async fn may_join(&self, user: &User) -> bool {
        let target = Target { verb: "post".into(), path: SERVER_JOIN_PATH.into(), ..Target::default() };
        matches!(self.0.authorize(user, &target).await, Decision::Allow(_))
    }
}

#[async_trait]
impl Plugin for ServerToken {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.is_part_of("", "secrets")
            && write.namespace == "kube-system"
            && matches!(write.operation, Operation::Create | Operation::Update)
            && !write.user.is_in(GROUP_MASTERS)
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let is_unchanged =
            |old: &Value| ["type", "data"].iter().all(|field| old.at(&[field]) == write.object.at(&[field]));
        if write.object.text(&["type"]) != SECRET_TYPE || write.old.is_some_and(is_unchanged) {
            return Ok(());
        }
        let name = format!("system:bootstrap:{}", decoded(write.object, "token-id"));
        let bearer = User { name, groups: groups(write.object), ..User::default() };
        if self.may_join(&bearer).await && !self.may_join(write.user).await {
            return Err(write.forbidden("only who may join servers to the cluster may write a token for servers"));
        }
        Ok(())
    }
}

/// The groups of who authenticates with a token.
fn groups(secret: &Value) -> Vec<String> {
    let given = decoded(secret, "auth-extra-groups");
    let given = given.split(',').map(|group| group.trim().to_owned());
    given.chain(["system:bootstrappers", GROUP_AUTHENTICATED].map(str::to_owned)).collect()
}

fn decoded(secret: &Value, field: &str) -> String {
    let bytes = STANDARD.decode(secret.text(&["data", field])).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::run_as;
    use super::*;
    use crate::authorize::Rbac;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    const RBAC: &str = "rbac.authorization.k8s.io";
    const SERVERS: &str = "system:bootstrappers:knarr:server";

    fn secret(kind: &str, groups: &str, secret: &str) -> Value {
        json!({"kind": "Secret", "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}, "type": kind,
            "data": {"token-secret": STANDARD.encode(secret), "auth-extra-groups": STANDARD.encode(groups)}})
    }

    /// An editor of kube-system would otherwise choose a token, join with it and receive the key of the authority.
    #[tokio::test]
    async fn writing_secrets_is_not_the_right_to_join_a_server() {
        let rule = json!([{"nonResourceURLs": ["/server-join"], "verbs": ["post"]}]);
        let binding = json!({"metadata": {"name": "join"}, "roleRef": {"kind": "ClusterRole", "name": "join"},
            "subjects": [{"kind": "Group", "name": SERVERS}, {"kind": "User", "name": "admin"}]});
        let objects = || {
            Fixed::new(vec![
                (RBAC, "clusterroles", json!({"metadata": {"name": "join"}, "rules": rule})),
                (RBAC, "clusterrolebindings", binding.clone()),
            ])
        };
        let plugin = ServerToken(Arc::new(Rbac::new(Arc::new(objects()))));
        let (nodes, both) = ("system:bootstrappers:nodes", format!("a,{SERVERS}"));
        let stored = secret(SECRET_TYPE, SERVERS, "old");
        for (user, object, old, is_refused) in [
            ("editor", secret(SECRET_TYPE, SERVERS, "mine"), None, true),
            ("editor", secret(SECRET_TYPE, &both, "mine"), None, true),
            ("editor", secret(SECRET_TYPE, SERVERS, "mine"), Some(stored.clone()), true),
            ("editor", secret(SECRET_TYPE, SERVERS, "mine"), Some(secret(SECRET_TYPE, nodes, "mine")), true),
            ("editor", stored.clone(), Some(stored.clone()), false),
            ("editor", secret(SECRET_TYPE, nodes, "mine"), None, false),
            ("editor", secret("Opaque", SERVERS, "mine"), None, false),
            ("admin", secret(SECRET_TYPE, SERVERS, "mine"), None, false),
        ] {
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            let user = User::named(user, &[]);
            let written = run_as(&user, &plugin, operation, ("", "secrets"), object.clone(), old, &objects()).await;
            assert_eq!(written.is_err(), is_refused, "{} {object}", user.name);
        }
    }
}
