//! The RBAC authorizer. Roles and bindings are compiled into an index by subject, again after each change.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use knarr_api::value::Read;
use serde_json::Value;

use super::{Authorizer, Decision, Rule};
use crate::object_reader::ObjectReader;
use crate::request::{Target, User};

const GROUP: &str = "rbac.authorization.k8s.io";
const RESOURCES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Authorizes by roles and bindings.
pub struct Rbac {
    objects: Arc<dyn ObjectReader>,
    compiled: ArcSwap<Compiled>,
}

/// All rules of a user in a namespace, and the bound roles that do not exist.
#[derive(Debug, Default)]
pub struct UserRules {
    pub rules: Vec<Rule>,
    pub missing_roles: Vec<String>,
}

impl Rbac {
    pub fn new(objects: Arc<dyn ObjectReader>) -> Self {
        Rbac { objects, compiled: ArcSwap::from_pointee(Compiled::default()) }
    }

    /// All rules that the user's bindings grant in a namespace (empty: only at the cluster scope).
    pub fn rules_for(&self, user: &User, namespace: &str) -> UserRules {
        let mut found = UserRules::default();
        self.policy().visit(user, namespace, |binding| {
            match &binding.rules {
                Ok(rules) => found.rules.extend(rules.iter().cloned()),
                Err(missing) => found.missing_roles.push(missing.clone()),
            }
            true
        });
        found
    }

    /// The rules of the role that a binding names, if it exists.
    pub fn role_rules(&self, role: &Value, namespace: &str) -> Option<Vec<Rule>> {
        let (resource, namespace) = match role.text(&["kind"]) {
            "ClusterRole" => ("clusterroles", ""),
            _ => ("roles", namespace),
        };
        let role = self.objects.get(GROUP, resource, namespace, role.text(&["name"]))?;
        Some(rules_of(&role))
    }

    fn policy(&self) -> Arc<Compiled> {
        let versions = RESOURCES.map(|resource| self.objects.version(GROUP, resource));
        let compiled = self.compiled.load();
        if compiled.versions == versions && versions != [0; 4] {
            return Arc::clone(&compiled);
        }
        let fresh = Arc::new(Compiled::build(self.objects.as_ref(), versions));
        self.compiled.store(Arc::clone(&fresh));
        fresh
    }
}

impl Authorizer for Rbac {
    fn decide(&self, user: &User, target: &Target) -> Decision {
        let mut allowed = None;
        let mut missing = Vec::new();
        self.policy().visit(user, &target.namespace, |binding| {
            match &binding.rules {
                Ok(rules) if rules.iter().any(|rule| rule.allows(target)) => {
                    allowed = Some(binding.reason.clone());
                    return false;
                }
                Ok(_) => {}
                Err(role) => missing.push(role.clone()),
            }
            true
        });
        match allowed {
            Some(reason) => Decision::Allow(reason),
            None if missing.is_empty() => Decision::NoOpinion(String::new()),
            None => Decision::NoOpinion(format!("RBAC: {}", one_or_list(&missing))),
        }
    }
}

fn one_or_list(texts: &[String]) -> String {
    match texts {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// The policy indexed by subject, so that a decision reads only the bindings of the requesting user.
#[derive(Default)]
struct Compiled {
    versions: [u64; 4],
    cluster: BySubject,
    by_namespace: HashMap<String, BySubject>,
}

#[derive(Default)]
struct BySubject {
    users: HashMap<String, Vec<Arc<Binding>>>,
    groups: HashMap<String, Vec<Arc<Binding>>>,
}

struct Binding {
    /// The rules of the bound role, or the error for a missing role.
    rules: Result<Arc<Vec<Rule>>, String>,
    reason: String,
}

impl Compiled {
    /// Roles and bindings can only allow, so an unreadable one is left out and allows nothing.
    fn build(objects: &dyn ObjectReader, versions: [u64; 4]) -> Self {
        let mut compiled = Compiled { versions, ..Compiled::default() };
        let mut cluster_roles = HashMap::new();
        for role in objects.list(GROUP, "clusterroles", "") {
            cluster_roles.insert(role.text(&["metadata", "name"]).to_owned(), Arc::new(rules_of(&role)));
        }
        for binding in objects.list(GROUP, "clusterrolebindings", "") {
            compiled.cluster.add(&binding, "", |role| find(&cluster_roles, role));
        }
        for binding in objects.list(GROUP, "rolebindings", "") {
            let namespace = binding.text(&["metadata", "namespace"]).to_owned();
            let by_subject = compiled.by_namespace.entry(namespace.clone()).or_default();
            by_subject.add(&binding, &namespace, |role| match role.text(&["kind"]) {
                "ClusterRole" => find(&cluster_roles, role),
                _ => {
                    let name = role.text(&["name"]);
                    let found = objects.get(GROUP, "roles", &namespace, name);
                    found
                        .map(|role| Arc::new(rules_of(&role)))
                        .ok_or_else(|| format!("role.{GROUP} {name:?} not found"))
                }
            });
        }
        compiled
    }

    /// Calls `each` with the user's bindings, cluster role bindings first, until it returns false.
    fn visit(&self, user: &User, namespace: &str, mut each: impl FnMut(&Binding) -> bool) {
        let in_namespace = if namespace.is_empty() { None } else { self.by_namespace.get(namespace) };
        for by_subject in std::iter::once(&self.cluster).chain(in_namespace) {
            let of_user = by_subject.users.get(&user.name).into_iter().flatten();
            let of_groups = user.groups.iter().filter_map(|group| by_subject.groups.get(group)).flatten();
            for binding in of_user.chain(of_groups) {
                if !each(binding) {
                    return;
                }
            }
        }
    }
}

fn find(cluster_roles: &HashMap<String, Arc<Vec<Rule>>>, role: &Value) -> Result<Arc<Vec<Rule>>, String> {
    let name = role.text(&["name"]);
    cluster_roles.get(name).cloned().ok_or_else(|| format!("clusterrole.{GROUP} {name:?} not found"))
}

fn rules_of(role: &Value) -> Vec<Rule> {
    role.items(&["rules"]).iter().map(Rule::from_value).collect()
}

impl BySubject {
    fn add(&mut self, binding: &Value, namespace: &str, resolve: impl Fn(&Value) -> Result<Arc<Vec<Rule>>, String>) {
        let role = binding.at(&["roleRef"]);
        let rules = resolve(role);
        for subject in binding.items(&["subjects"]) {
            let name = subject.text(&["name"]);
            let (map, key, subject_name) = match subject.text(&["kind"]) {
                "User" => (&mut self.users, name.to_owned(), name.to_owned()),
                "Group" => (&mut self.groups, name.to_owned(), name.to_owned()),
                "ServiceAccount" => {
                    let of = match subject.text(&["namespace"]) {
                        "" => namespace,
                        of => of,
                    };
                    (&mut self.users, format!("system:serviceaccount:{of}:{name}"), format!("{name}/{of}"))
                }
                _ => continue,
            };
            let place = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
            let binding_name = match namespace {
                "" => binding.text(&["metadata", "name"]).to_owned(),
                namespace => format!("{}/{namespace}", binding.text(&["metadata", "name"])),
            };
            let reason = format!(
                "RBAC: allowed by {place} {binding_name:?} of {} {:?} to {} {subject_name:?}",
                role.text(&["kind"]),
                role.text(&["name"]),
                subject.text(&["kind"])
            );
            map.entry(key).or_default().push(Arc::new(Binding { rules: rules.clone(), reason }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    fn policy() -> Rbac {
        let objects = Fixed::new(vec![
            (
                GROUP,
                "clusterroles",
                json!({"metadata": {"name": "view"}, "rules": [
                {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]}),
            ),
            (
                GROUP,
                "clusterrolebindings",
                json!({"metadata": {"name": "readers"},
                "roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "Group", "name": "readers"}]}),
            ),
            (
                GROUP,
                "rolebindings",
                json!({"metadata": {"name": "b", "namespace": "n"},
                "roleRef": {"kind": "Role", "name": "gone"}, "subjects": [{"kind": "User", "name": "ann"}]}),
            ),
            (
                GROUP,
                "rolebindings",
                json!({"metadata": {"name": "c", "namespace": "n"},
                "roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "m"}]}),
            ),
        ]);
        Rbac::new(Arc::new(objects))
    }

    fn list_pods(namespace: &str) -> Target {
        Target { verb: "list".into(), resource: "pods".into(), namespace: namespace.into(), ..Target::default() }
    }

    #[test]
    fn bindings_grant_the_rules_of_their_role_in_their_namespace() {
        let rbac = policy();
        let decide = |name: &str, groups: &[&str], namespace: &str| {
            rbac.decide(&User::named(name, groups), &list_pods(namespace))
        };
        assert!(matches!(decide("x", &["readers"], ""), Decision::Allow(_)));
        assert!(matches!(decide("system:serviceaccount:m:s", &[], "n"), Decision::Allow(_)));
        assert_eq!(decide("system:serviceaccount:m:s", &[], "other"), Decision::NoOpinion(String::new()));
        let missing = r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#;
        assert_eq!(decide("ann", &[], "n"), Decision::NoOpinion(missing.into()));
    }

    #[test]
    fn the_reason_names_binding_role_and_subject() {
        let decision = policy().decide(&User::named("x", &["readers"]), &list_pods(""));
        let reason = r#"RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "view" to Group "readers""#;
        assert_eq!(decision, Decision::Allow(reason.into()));
    }
}
