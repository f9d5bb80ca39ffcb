//! OwnerReferencesPermissionEnforcement: who sets owner references must be allowed to delete the object, and to set
//! finalizers of owners whose deletion it blocks.

use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, Decision};
use crate::object_reader::ObjectReader;
use crate::request::Target;

pub struct OwnerReferences(pub Arc<dyn Authorizer>);

fn references(object: &Value) -> &[Value] {
    object.items(&["metadata", "ownerReferences"])
}

fn blocks(reference: &Value) -> bool {
    reference.flag(&["blockOwnerDeletion"]) == Some(true)
}

/// References that block their owner's deletion and did not before.
fn newly_blocking<'a>(object: &'a Value, old: Option<&Value>) -> Vec<&'a Value> {
    let before = old.map(references).unwrap_or_default();
    let blocked_before = |reference: &Value| {
        before.iter().any(|other| other.text(&["uid"]) == reference.text(&["uid"]) && blocks(other))
    };
    references(object).iter().filter(|reference| blocks(reference) && !blocked_before(reference)).collect()
}

fn finalizers(group: &str, version: &str, resource: &str, namespace: &str, name: &str) -> Target {
    Target {
        verb: "update".into(),
        group: group.into(),
        version: version.into(),
        resource: resource.into(),
        subresource: "finalizers".into(),
        namespace: namespace.into(),
        name: name.into(),
        ..Target::default()
    }
}

impl OwnerReferences {
    async fn check_owner(&self, write: &Write<'_>, reference: &Value) -> Result<(), Status> {
        let (api_version, kind) = (reference.text(&["apiVersion"]), reference.text(&["kind"]));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resources: Vec<(String, bool)> = match write.call {
            Some(call) => {
                let kinds = call.backend.kinds.load();
                let of_kind = kinds.all().filter(|resource| {
                    let own = &resource.kind;
                    own.group == group && own.version == version && own.kind == kind
                });
                of_kind.map(|resource| (resource.kind.plural.to_string(), resource.kind.namespaced)).collect()
            }
            None => Vec::new(),
        };
        if resources.is_empty() {
            return Err(write.forbidden(format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} \
                 Kind {kind}: no matches for kind {kind:?} in version {api_version:?}"
            )));
        }
        for (resource, is_namespaced) in resources {
            let namespace = if is_namespaced { write.namespace } else { "" };
            let target = finalizers(group, version, &resource, namespace, reference.text(&["name"]));
            let decision = self.0.authorize(write.user, &target).await;
            if !matches!(decision, Decision::Allow(_)) {
                return Err(write.forbidden(format!(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: \
                     {}, {}",
                    reason(&decision),
                    error(&decision)
                )));
            }
        }
        Ok(())
    }
}

fn reason(decision: &Decision) -> &str {
    if matches!(decision, Decision::Failed { .. }) { "" } else { decision.reason() }
}

fn error(decision: &Decision) -> &str {
    match decision {
        Decision::Failed { error, .. } => error,
        _ => "<nil>",
    }
}

#[async_trait]
impl Plugin for OwnerReferences {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update)
            && !(write.is_part_of("", "pods") && write.subresource == "status")
            && references(write.object) != write.old.map(references).unwrap_or_default()
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.operation != Operation::Create {
            let target = Target {
                verb: "delete".into(),
                group: write.group.into(),
                version: write.version.into(),
                resource: write.resource.into(),
                subresource: write.subresource.into(),
                namespace: write.namespace.into(),
                name: write.name.into(),
                ..Target::default()
            };
            let decision = self.0.authorize(write.user, &target).await;
            if !matches!(decision, Decision::Allow(_)) {
                return Err(write.forbidden(format!(
                    "cannot set an ownerRef on a resource you can't delete: {}, {}",
                    reason(&decision),
                    error(&decision)
                )));
            }
        }
        let blocking: Vec<Value> = newly_blocking(write.object, write.old).into_iter().cloned().collect();
        if blocking.is_empty() {
            return Ok(());
        }
        let anything = finalizers("*", "*", "*", "", "*");
        if matches!(self.0.authorize(write.user, &anything).await, Decision::Allow(_)) {
            return Ok(());
        }
        for reference in &blocking {
            self.check_owner(write, reference).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::EnabledPlugins;
    use crate::request_tests::Cluster;
    use serde_json::{Value, json};

    #[tokio::test]
    async fn owners_are_set_by_those_who_may() {
        let plugins = EnabledPlugins::new(&["OwnerReferencesPermissionEnforcement".to_owned()], &[], None).unwrap();
        let cluster = Cluster::with_plugins(plugins).await;
        let group = "rbac.authorization.k8s.io";
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "update", "get"]}]);
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": "r"},
                          "rules": rules});
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": "ann"}],
        });
        for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            let (code, response) = cluster.json("POST", &format!("/apis/{group}/v1/{plural}"), object).await;
            assert_eq!(code, 201, "{response}");
        }
        let owner = |blocks: bool| json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "1", "blockOwnerDeletion": blocks}]);
        let map = |name: &str, owners: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}});
        let path = "/api/v1/namespaces/default/configmaps";
        let (code, _) = cluster.json_as("ann", "POST", path, map("a", owner(false))).await;
        assert_eq!(code, 201);
        let (code, response) = cluster.json_as("ann", "POST", path, map("b", owner(true))).await;
        assert_eq!(
            (code, response["message"].as_str().unwrap_or_default()),
            (
                403,
                "configmaps \"b\" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you \
                 can't set finalizers on: , <nil>"
            )
        );
        let (code, response) = cluster.json_as("ann", "PUT", &format!("{path}/a"), map("a", json!([]))).await;
        assert_eq!(
            (code, response["message"].as_str().unwrap_or_default()),
            (403, "configmaps \"a\" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>")
        );
    }
}
