//! RBAC escalation check: users may only grant rules that they have themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, Decision, Rbac, Rule, uncovered};
use crate::object_reader::ObjectReader;
use crate::request::{GROUP_MASTERS, Target};

const GROUP: &str = "rbac.authorization.k8s.io";

/// The Roles by which nodes read the TLS Secrets that Ingresses name. Who creates an Ingress decides what they grant, later than they
/// are bound: so holding their rules is not enough to bind them.
const INGRESS_ROLE: &str = "knarr:ingress";

/// Not a plugin of Kubernetes, which does this when it stores roles.
pub const NAME: &str = "RBACEscalation";

pub struct Escalation {
    authorizer: Arc<dyn Authorizer>,
    rbac: Arc<Rbac>,
}

impl Escalation {
    pub fn new(authorizer: Arc<dyn Authorizer>, rbac: Arc<Rbac>) -> Self {
        Escalation { authorizer, rbac }
    }

    fn is_allowed(&self, write: &Write<'_>, verb: &str, resource: &str, name: &str) -> bool {
        let target = Target {
            verb: verb.into(),
            group: GROUP.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: write.namespace.into(),
            name: name.into(),
            ..Target::default()
        };
        matches!(self.authorizer.decide(write.user, &target), Decision::Allow(_))
    }

    fn check_rules(&self, write: &Write<'_>, granted: &[Rule]) -> Result<(), Status> {
        let own = self.rbac.rules_for(write.user, write.namespace);
        let missing: BTreeSet<String> = uncovered(own.distinct(), granted).iter().map(Rule::to_string).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let groups: Vec<String> = write.user.groups.iter().map(|group| format!("{group:?}")).collect();
        let mut why = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            write.user.name,
            groups.join(" "),
            missing.into_iter().collect::<Vec<_>>().join("\n")
        );
        if !own.missing_roles.is_empty() {
            why.push_str(&format!("; resolution errors: [{}]", own.missing_roles.join(", ")));
        }
        Err(write.forbidden(why))
    }

    fn check_role(&self, write: &Write<'_>) -> Result<(), Status> {
        if self.is_allowed(write, "escalate", write.resource, write.name) {
            return Ok(());
        }
        let rules: Vec<Rule> = write.object.items(&["rules"]).iter().map(Rule::from_value).collect();
        self.check_rules(write, &rules)?;
        let aggregates = |role: &Value| !role.items(&["aggregationRule", "clusterRoleSelectors"]).is_empty();
        if aggregates(write.object) || write.old.is_some_and(aggregates) {
            let everything = |rule: Rule| Rule { verbs: vec!["*".into()], ..rule };
            let full = [
                everything(Rule { groups: vec!["*".into()], resources: vec!["*".into()], ..Rule::default() }),
                everything(Rule { paths: vec!["*".into()], ..Rule::default() }),
            ];
            if self.check_rules(write, &full).is_err() {
                return Err(write.forbidden("must have cluster-admin privileges to use the aggregationRule"));
            }
        }
        Ok(())
    }

    fn check_binding(&self, write: &Write<'_>) -> Result<(), Status> {
        let role = write.object.at(&["roleRef"]);
        let name = role.text(&["name"]);
        let resource = if role.text(&["kind"]) == "ClusterRole" { "clusterroles" } else { "roles" };
        if self.is_allowed(write, "bind", resource, name) {
            return Ok(());
        }
        if resource == "roles" && name == INGRESS_ROLE {
            return Err(write.forbidden(format!("only who may bind the role {name:?} may do so")));
        }
        match self.rbac.role_rules(role, write.namespace) {
            Some(rules) => self.check_rules(write, &rules),
            None => {
                let kind = knarr_api::status::GroupResource { group: GROUP, name: write.resource };
                Err(Status::not_found(kind, name))
            }
        }
    }
}

#[async_trait]
impl Plugin for Escalation {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.group == GROUP
            && matches!(write.operation, Operation::Create | Operation::Update)
            && !write.user.is_in(GROUP_MASTERS)
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.old.is_some_and(|old| differ_for_garbage_collection_only(old, write.object)) {
            return Ok(());
        }
        match write.resource {
            "roles" | "clusterroles" => self.check_role(write),
            _ => self.check_binding(write),
        }
    }
}

/// Such changes grant nothing. Labels do, to aggregated roles; so does the annotation by which a start restores what was removed.
fn differ_for_garbage_collection_only(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        for field in ["finalizers", "managedFields", "ownerReferences", "selfLink"] {
            object.remove(&["metadata", field]);
        }
        object
    };
    rest(old) == rest(new)
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn only_held_rules_are_granted() {
        let objects = || {
            Fixed::new(vec![
                (
                    GROUP,
                    "clusterroles",
                    json!({"metadata": {"name": "reader"}, "rules": [
                    {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
                ),
                (
                    GROUP,
                    "clusterrolebindings",
                    json!({"metadata": {"name": "b"},
                    "roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [{"kind": "User", "name": "ann"}]}),
                ),
            ])
        };
        let rbac = Arc::new(Rbac::new(Arc::new(objects())));
        let plugin = Escalation::new(Arc::clone(&rbac) as Arc<dyn Authorizer>, rbac);
        for (verb, refusal) in [
            ("get", None),
            (
                "delete",
                Some(
                    "clusterroles.rbac.authorization.k8s.io \"r\" is forbidden: user \"ann\" (groups=[]) is attempting to \
                     grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], \
                     Verbs:[\"delete\"]}",
                ),
            ),
        ] {
            let role = json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [
                {"verbs": [verb], "apiGroups": [""], "resources": ["pods"]}]});
            let result = run(&plugin, Operation::Create, (GROUP, "clusterroles"), role, None, &objects()).await;
            assert_eq!(result.err().as_deref(), refusal);
        }
    }

    #[tokio::test]
    async fn a_change_for_the_garbage_collector_needs_no_rules_and_any_other_does() {
        let rbac = Arc::new(Rbac::new(Arc::new(Fixed::new(vec![]))));
        let plugin = Escalation::new(Arc::clone(&rbac) as Arc<dyn Authorizer>, rbac);
        let old = json!({"kind": "ClusterRole", "metadata": {"name": "r", "resourceVersion": "1"}, "rules": [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        let change = |field: &str, value: Value| {
            let mut new = old.clone();
            new["metadata"][field] = value;
            new
        };
        for (new, is_allowed) in [
            (old.clone(), true),
            (change("finalizers", json!(["foregroundDeletion"])), true),
            (change("ownerReferences", json!([{"uid": "u"}])), true),
            (change("labels", json!({"rbac.authorization.k8s.io/aggregate-to-admin": "true"})), false),
            (change("annotations", json!({"rbac.authorization.kubernetes.io/autoupdate": "true"})), false),
        ] {
            let target = (GROUP, "clusterroles");
            let result = run(&plugin, Operation::Update, target, new, Some(old.clone()), &Fixed::new(vec![])).await;
            assert_eq!(result.is_ok(), is_allowed, "{result:?}");
        }
    }

    #[tokio::test]
    async fn what_an_ingress_grants_to_nodes_is_granted_to_nobody_else() {
        let objects = || {
            let role =
                |name: &str| (GROUP, "roles", json!({"metadata": {"name": name, "namespace": "n"}, "rules": []}));
            Fixed::new(vec![role("empty"), role(INGRESS_ROLE)])
        };
        let rbac = Arc::new(Rbac::new(Arc::new(objects())));
        let plugin = Escalation::new(Arc::clone(&rbac) as Arc<dyn Authorizer>, rbac);
        for (role, is_allowed) in [("empty", true), (INGRESS_ROLE, false)] {
            let binding = json!({"kind": "RoleBinding", "metadata": {"name": "mine", "namespace": "n"},
                "roleRef": {"kind": "Role", "name": role}, "subjects": [{"kind": "User", "name": "ann"}]});
            let result = run(&plugin, Operation::Create, (GROUP, "rolebindings"), binding, None, &objects()).await;
            assert_eq!(result.is_ok(), is_allowed, "{role}: {result:?}");
        }
    }
}
