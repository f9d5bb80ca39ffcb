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
    assert!(found.roles.iter().all(|rules| Arc::ptr_eq(rules, &found.roles[0])));
}

/// Who may create a binding chooses a name of a megabyte, which each of thousands of subjects would repeat.
#[test]
fn a_binding_of_many_subjects_is_kept_once() {
    const SUBJECTS: usize = 1000;
    let long = "x".repeat(100_000);
    let subjects: Vec<_> =
        (0..SUBJECTS).map(|at| json!({"kind": "ServiceAccount", "name": format!("s{at}")})).collect();
    let binding = |name: &str, kind: &str| {
        let metadata = json!({"name": name, "namespace": "n"});
        let role = json!({"kind": kind, "name": long});
        (GROUP, "rolebindings", json!({"metadata": metadata, "roleRef": role, "subjects": subjects}))
    };
    let missing = binding("missing", "Role");
    let rbac = Rbac::new(Arc::new(Fixed::new(vec![binding(&long, "ClusterRole"), missing])));
    let mut bindings = HashMap::new();
    let mut errors = HashSet::new();
    for at in 0..SUBJECTS {
        let user = User::named(&format!("system:serviceaccount:n:s{at}"), &[]);
        rbac.visit(&user, "n", |bound| {
            let kept = bound.binding;
            *bindings.entry(Arc::as_ptr(kept)).or_insert(0) += 1;
            errors.insert(Arc::as_ptr(kept.rules.as_ref().unwrap_err()));
            true
        });
    }
    assert_eq!(bindings.values().copied().collect::<Vec<_>>(), [SUBJECTS; 2]);
    assert_eq!(errors.len(), 2);
}

/// A binding that repeats its subject would otherwise have all rules of its role evaluated each time.
#[test]
fn a_subject_that_is_repeated_counts_once() {
    let account = json!({"kind": "ServiceAccount", "name": "s"});
    let same = json!({"kind": "User", "name": "system:serviceaccount:n:s"});
    let group = |name: &str| json!({"kind": "Group", "name": name});
    let mut subjects = vec![account.clone(); 100];
    subjects.extend([same, group("a"), group("b"), account, group("a")]);
    let binding = |name: &str, role: &str| {
        let metadata = json!({"name": name, "namespace": "n"});
        let role = json!({"kind": "Role", "name": role});
        (GROUP, "rolebindings", json!({"metadata": metadata, "roleRef": role, "subjects": subjects}))
    };
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    let role = json!({"metadata": {"name": "r", "namespace": "n"}, "rules": [rule]});
    let objects = vec![binding("b", "r"), binding("c", "gone"), (GROUP, "roles", role)];
    let rbac = Rbac::new(Arc::new(Fixed::new(objects)));
    let user = User::named("system:serviceaccount:n:s", &["a", "b", "a"]);
    let found = rbac.rules_for(&user, "n");
    assert_eq!((found.roles.len(), found.missing_roles.len()), (1, 1));
    let policy = rbac.policy();
    assert_eq!(policy.namespaces.read()["n"].get().unwrap().users[&user.name].len(), 2);
    let missing = r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#;
    assert_eq!(rbac.decide(&user, &list_pods("n")), Decision::NoOpinion(missing.into()));
    let get = Target { verb: "get".into(), ..list_pods("n") };
    let reason = r#"RBAC: allowed by RoleBinding "b/n" of Role "r" to ServiceAccount "s/n""#;
    assert_eq!(rbac.decide(&user, &get), Decision::Allow(reason.into()));
    let by_group = r#"RBAC: allowed by RoleBinding "b/n" of Role "r" to Group "b""#;
    assert_eq!(rbac.decide(&User::named("x", &["b", "a"]), &get), Decision::Allow(by_group.into()));
}

/// With an evaluation for each binding, this takes minutes.
#[test]
fn a_role_that_is_bound_many_times_is_evaluated_once() {
    const MANY: usize = 20_000;
    let rules = vec![json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}); MANY];
    let role = json!({"metadata": {"name": "r", "namespace": "n"}, "rules": rules});
    let binding = json!({"metadata": {"name": "b", "namespace": "n"}, "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "ann"}]});
    let bindings = std::iter::repeat_n((GROUP, "rolebindings", binding), MANY);
    let rbac = Rbac::new(Arc::new(Fixed::new(bindings.chain([(GROUP, "roles", role)]).collect())));
    let ann = User::named("ann", &[]);
    assert_eq!(rbac.rules_for(&ann, "n").roles.len(), MANY);
    let started = std::time::Instant::now();
    for _ in 0..10 {
        assert_eq!(rbac.decide(&ann, &list_pods("n")), Decision::NoOpinion(String::new()));
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(30));
}

/// Objects whose bindings are listed by all threads before one of them goes on.
struct Simultaneous {
    objects: Fixed,
    listed: std::sync::Barrier,
    compiled: std::sync::atomic::AtomicUsize,
}

impl ObjectReader for Simultaneous {
    fn read(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, Status> {
        self.objects.read(group, resource, namespace, name)
    }

    fn read_all(&self, group: &str, resource: &str, namespace: &str) -> Result<Vec<Arc<Value>>, Status> {
        self.objects.read_all(group, resource, namespace)
    }

    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.compiled.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.objects.get(group, resource, namespace, name)
    }

    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        if resource == "rolebindings" {
            self.listed.wait();
        }
        self.objects.list(group, resource, namespace)
    }

    fn version(&self, _group: &str, _resource: &str) -> u64 {
        1
    }
}

/// Each compilation takes as much memory as the bindings of its namespace.
#[test]
fn simultaneous_requests_compile_a_namespace_once() {
    const REQUESTS: usize = 8;
    let binding = json!({"metadata": {"name": "b", "namespace": "n"}, "roleRef": {"kind": "Role", "name": "gone"},
        "subjects": [{"kind": "User", "name": "ann"}]});
    let reader = Arc::new(Simultaneous {
        objects: Fixed::new(vec![(GROUP, "rolebindings", binding)]),
        listed: std::sync::Barrier::new(REQUESTS),
        compiled: std::sync::atomic::AtomicUsize::default(),
    });
    let rbac = Rbac::new(reader.clone());
    std::thread::scope(|scope| {
        for _ in 0..REQUESTS {
            scope.spawn(|| assert_eq!(rbac.rules_for(&User::named("ann", &[]), "n").missing_roles.len(), 1));
        }
    });
    assert_eq!(reader.compiled.load(std::sync::atomic::Ordering::SeqCst), 1);
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
