//! Tests of the RBAC authorizer.

use super::*;
use crate::object_reader::tests::Fixed;
use knarr_api::status::Status;
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
    let decide =
        |name: &str, groups: &[&str], namespace: &str| rbac.decide(&User::named(name, groups), &list_pods(namespace));
    assert!(matches!(decide("x", &["readers"], ""), Decision::Allow(_)));
    assert!(matches!(decide("system:serviceaccount:m:s", &[], "n"), Decision::Allow(_)));
    assert_eq!(decide("system:serviceaccount:m:s", &[], "other"), Decision::NoOpinion(String::new()));
    let missing = r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#;
    assert_eq!(decide("ann", &[], "n"), Decision::NoOpinion(missing.into()));
}

/// Who may create roles and bindings of a namespace could otherwise fill the memory with copies of one large role.
#[test]
fn a_role_that_is_bound_many_times_is_kept_once() {
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    let role = json!({"metadata": {"name": "r", "namespace": "n"}, "rules": [rule]});
    let binding = |at: usize| {
        let metadata = json!({"name": format!("b{at}"), "namespace": "n"});
        let subjects = json!([{"kind": "User", "name": "ann"}]);
        (
            GROUP,
            "rolebindings",
            json!({"metadata": metadata, "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}),
        )
    };
    let objects = (0..100).map(binding).chain([(GROUP, "roles", role)]).collect();
    let rbac = Rbac::new(Arc::new(Fixed::new(objects)));
    let found = rbac.rules_for(&User::named("ann", &[]), "n");
    assert_eq!((found.all().count(), found.distinct().count()), (100, 1));
    let mut bindings = Vec::new();
    rbac.visit(&User::named("ann", &[]), "n", |binding| {
        bindings.push(binding.rules.clone().unwrap());
        true
    });
    assert_eq!(bindings.len(), 100);
    assert!(bindings.iter().all(|rules| Arc::ptr_eq(rules, &bindings[0])));
}

#[test]
fn the_reason_names_binding_role_and_subject() {
    let decision = policy().decide(&User::named("x", &["readers"]), &list_pods(""));
    let reason = r#"RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "view" to Group "readers""#;
    assert_eq!(decision, Decision::Allow(reason.into()));
}

/// Objects that can be changed, and that count how often each resource is listed.
struct Counted {
    objects: Mutex<Fixed>,
    versions: Mutex<HashMap<&'static str, u64>>,
    lists: Mutex<Vec<String>>,
}

impl ObjectReader for Counted {
    fn read(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, Status> {
        self.objects.lock().read(group, resource, namespace, name)
    }

    fn read_all(&self, group: &str, resource: &str, namespace: &str) -> Result<Vec<Arc<Value>>, Status> {
        self.objects.lock().read_all(group, resource, namespace)
    }

    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.lock().get(group, resource, namespace, name)
    }

    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.lists.lock().push(format!("{resource} {namespace}"));
        self.objects.lock().list(group, resource, namespace)
    }

    fn version(&self, _group: &str, resource: &str) -> u64 {
        self.versions.lock().get(resource).copied().unwrap_or(1)
    }
}

#[test]
fn a_change_is_compiled_where_it_can_matter() {
    let view =
        json!({"metadata": {"name": "view"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    let binding = |namespace: &str, user: &str| {
        let subjects = json!([{"kind": "User", "name": user}]);
        json!({"metadata": {"name": "b", "namespace": namespace}, "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": subjects})
    };
    let objects = |user: &str| {
        Fixed::new(vec![
            (GROUP, "clusterroles", view.clone()),
            (GROUP, "rolebindings", binding("n", user)),
            (GROUP, "rolebindings", binding("m", user)),
        ])
    };
    let reader =
        Arc::new(Counted { objects: Mutex::new(objects("ann")), versions: Mutex::default(), lists: Mutex::default() });
    let rbac = Rbac::new(reader.clone());
    let allows = |user: &str, namespace: &str| {
        matches!(rbac.decide(&User::named(user, &[]), &list_pods(namespace)), Decision::Allow(_))
    };
    let lists = || std::mem::take(&mut *reader.lists.lock());
    assert!(allows("ann", "n") && !allows("ann", "absent"));
    assert_eq!(lists(), ["clusterroles ", "clusterrolebindings ", "rolebindings n", "rolebindings absent"]);
    assert!(allows("ann", "n") && allows("ann", "m"));
    assert_eq!(lists(), ["rolebindings m"]);
    *reader.objects.lock() = objects("bob");
    reader.versions.lock().insert("rolebindings", 2);
    assert!(!allows("ann", "n") && allows("bob", "n"));
    assert_eq!(lists(), ["rolebindings n"], "only bindings of the namespace");
    *reader.objects.lock() = Fixed::new(vec![(GROUP, "rolebindings", binding("n", "bob"))]);
    reader.versions.lock().insert("clusterroles", 2);
    assert!(!allows("bob", "n"), "its role is gone");
}
