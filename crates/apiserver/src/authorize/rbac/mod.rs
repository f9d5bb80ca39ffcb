//! The RBAC authorizer. Roles and bindings are compiled into an index by subject.
//!
//! After a change, what it can concern is compiled again, once: the cluster's roles and bindings, if one of them changed, and
//! the bindings of each namespace when a request for it comes. So a change costs little however many namespaces there are.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use knarr_api::value::Read;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use crate::authorize::{Authorizer, Decision, Rule};
use crate::object_reader::ObjectReader;
use crate::request::{Target, User};

const GROUP: &str = "rbac.authorization.k8s.io";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
const RESOURCES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Authorizes by roles and bindings.
pub struct Rbac {
    objects: Arc<dyn ObjectReader>,
    compiled: ArcSwap<Compiled>,
    /// Held by the request that compiles, so that others wait for it instead of doing the same.
    compiling: Mutex<()>,
}

/// All rules of a user in a namespace, and the bound roles that do not exist.
#[derive(Debug, Default)]
pub struct UserRules {
    /// The rules of each bound role. They are shared: one role may be bound many times, and roles may be large.
    pub roles: Vec<Arc<Vec<Rule>>>,
    pub missing_roles: Vec<Arc<str>>,
}

impl UserRules {
    /// The rules of all bindings, in their order.
    pub fn all(&self) -> impl Iterator<Item = &Rule> {
        self.roles.iter().flat_map(|rules| rules.iter())
    }

    /// The rules of each role once, however often it is bound.
    pub fn distinct(&self) -> impl Iterator<Item = &Rule> {
        let mut known = HashSet::new();
        self.roles.iter().filter(move |rules| known.insert(Arc::as_ptr(rules))).flat_map(|rules| rules.iter())
    }
}

impl Rbac {
    pub fn new(objects: Arc<dyn ObjectReader>) -> Self {
        Rbac { objects, compiled: ArcSwap::from_pointee(Compiled::default()), compiling: Mutex::default() }
    }

    /// All rules that the user's bindings grant in a namespace (empty: only at the cluster scope).
    pub fn rules_for(&self, user: &User, namespace: &str) -> UserRules {
        let mut found = UserRules::default();
        self.visit(user, namespace, |bound| {
            match &bound.binding.rules {
                Ok(rules) => found.roles.push(Arc::clone(rules)),
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
        if let Some(current) = self.current() {
            return current;
        }
        let _compiling = self.compiling.lock();
        if let Some(current) = self.current() {
            return current;
        }
        let versions = self.versions();
        let fresh = Arc::new(Compiled::build(&*self.objects, versions, &self.compiled.load()));
        self.compiled.store(Arc::clone(&fresh));
        fresh
    }

    /// What is compiled, if it is up to date.
    fn current(&self) -> Option<Arc<Compiled>> {
        let (versions, compiled) = (self.versions(), self.compiled.load());
        (compiled.versions == versions && versions != [0; 4]).then(|| Arc::clone(&compiled))
    }

    fn versions(&self) -> [u64; 4] {
        RESOURCES.map(|resource| self.objects.version(GROUP, resource))
    }

    /// Calls `each` with the user's bindings, each once and cluster role bindings first, until it returns false.
    fn visit(&self, user: &User, namespace: &str, mut each: impl FnMut(&Bound<'_>) -> bool) {
        let policy = self.policy();
        if policy.cluster.bindings.visit(user, &mut each) && !namespace.is_empty() {
            policy.visit_namespace(&*self.objects, namespace, user, &mut each);
        }
    }
}

impl Authorizer for Rbac {
    fn decide(&self, user: &User, target: &Target) -> Decision {
        let mut allowed = None;
        let mut missing = Vec::new();
        // Roles may be large, and one may be bound many times.
        let mut evaluated = HashSet::new();
        self.visit(user, &target.namespace, |bound| {
            match &bound.binding.rules {
                Ok(rules) if evaluated.insert(Arc::as_ptr(rules)) && rules.iter().any(|rule| rule.allows(target)) => {
                    allowed = Some(bound.reason());
                    return false;
                }
                Ok(_) => {}
                Err(role) => missing.push(Arc::clone(role)),
            }
            true
        });
        match allowed {
            Some(reason) => Decision::Allow(reason),
            None if missing.is_empty() => Decision::NoOpinion(String::new()),
            None => Decision::NoOpinion(format!("RBAC: {}", one_or_list(&missing))),
        }
    }

    fn rules(&self, user: &User, namespace: &str) -> UserRules {
        self.rules_for(user, namespace)
    }
}

fn one_or_list(texts: &[Arc<str>]) -> String {
    match texts {
        [one] => one.to_string(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// The policy indexed by subject, so that a decision reads only the bindings of the requesting user.
#[derive(Default)]
struct Compiled {
    versions: [u64; 4],
    cluster: Arc<Cluster>,
    /// The namespaces that have bindings and that were requested. Each is compiled by one request; others wait for it.
    namespaces: RwLock<HashMap<String, Arc<OnceLock<BySubject>>>>,
}

#[derive(Default)]
struct Cluster {
    roles: HashMap<String, Arc<Vec<Rule>>>,
    bindings: BySubject,
}

/// A binding is kept once, however many subjects it has and however often it repeats them.
#[derive(Default)]
struct BySubject {
    users: HashMap<String, Vec<(SubjectKind, Arc<Binding>)>>,
    groups: HashMap<String, Vec<(SubjectKind, Arc<Binding>)>>,
}

#[derive(Clone, Copy)]
enum SubjectKind {
    User,
    Group,
    ServiceAccount,
}

/// Its names may be as long as an object: what contains them is written when it is needed, not for each subject.
struct Binding {
    name: String,
    /// Empty for one of the cluster.
    namespace: String,
    role_kind: String,
    role_name: String,
    /// The rules of the bound role, or the error for a missing role.
    rules: Result<Arc<Vec<Rule>>, Arc<str>>,
}

/// A binding and that subject of it which the user is.
struct Bound<'a> {
    binding: &'a Arc<Binding>,
    kind: SubjectKind,
    /// The name of the user or group.
    name: &'a str,
}

impl Bound<'_> {
    /// Why a request is allowed.
    fn reason(&self) -> String {
        let Binding { name, namespace, role_kind, role_name, .. } = &**self.binding;
        let of = match namespace.as_str() {
            "" => format!("ClusterRoleBinding {name:?}"),
            namespace => format!("RoleBinding {:?}", format!("{name}/{namespace}")),
        };
        let to = match self.kind {
            SubjectKind::User => format!("User {:?}", self.name),
            SubjectKind::Group => format!("Group {:?}", self.name),
            SubjectKind::ServiceAccount => {
                let account = self.name.strip_prefix(SERVICE_ACCOUNT).and_then(|account| account.split_once(':'));
                let (namespace, name) = account.unwrap_or_default();
                format!("ServiceAccount {:?}", format!("{name}/{namespace}"))
            }
        };
        format!("RBAC: allowed by {of} of {role_kind} {role_name:?} to {to}")
    }
}

impl Compiled {
    fn build(objects: &dyn ObjectReader, versions: [u64; 4], previous: &Compiled) -> Self {
        let is_same_cluster = versions[..2] == previous.versions[..2] && versions[0] != 0;
        let cluster = if is_same_cluster { previous.cluster.clone() } else { Arc::new(Cluster::build(objects)) };
        Compiled { versions, cluster, namespaces: RwLock::default() }
    }

    /// Calls `each` with the user's bindings in a namespace until it returns false.
    fn visit_namespace(
        &self,
        objects: &dyn ObjectReader,
        namespace: &str,
        user: &User,
        each: &mut impl FnMut(&Bound<'_>) -> bool,
    ) {
        let known = self.namespaces.read().get(namespace).cloned();
        if let Some(compiled) = known.as_ref().and_then(|known| known.get()) {
            compiled.visit(user, each);
            return;
        }
        let bindings = objects.list(GROUP, "rolebindings", namespace);
        if bindings.is_empty() {
            // Not kept: requests can name any number of namespaces that do not exist.
            return;
        }
        let place = self.namespaces.write().entry(namespace.to_owned()).or_default().clone();
        place.get_or_init(|| self.compile_namespace(objects, namespace, &bindings)).visit(user, each);
    }

    fn compile_namespace(&self, objects: &dyn ObjectReader, namespace: &str, bindings: &[Arc<Value>]) -> BySubject {
        let mut by_subject = BySubject::default();
        // Each role once, however often it is bound.
        let mut roles: HashMap<String, Option<Arc<Vec<Rule>>>> = HashMap::new();
        for binding in bindings {
            by_subject.add(binding, namespace, |role| match role.text(&["kind"]) {
                "ClusterRole" => find(&self.cluster.roles, role),
                _ => {
                    let name = role.text(&["name"]);
                    let compile = || objects.get(GROUP, "roles", namespace, name).map(|role| Arc::new(rules_of(&role)));
                    let found = roles.entry(name.to_owned()).or_insert_with(compile).clone();
                    found.ok_or_else(|| format!("role.{GROUP} {name:?} not found").into())
                }
            });
        }
        by_subject
    }
}

impl Cluster {
    /// Roles and bindings can only allow, so an unreadable one is left out and allows nothing.
    fn build(objects: &dyn ObjectReader) -> Self {
        let mut cluster = Cluster::default();
        for role in objects.list(GROUP, "clusterroles", "") {
            cluster.roles.insert(role.text(&["metadata", "name"]).to_owned(), Arc::new(rules_of(&role)));
        }
        for binding in objects.list(GROUP, "clusterrolebindings", "") {
            cluster.bindings.add(&binding, "", |role| find(&cluster.roles, role));
        }
        cluster
    }
}

fn find(cluster_roles: &HashMap<String, Arc<Vec<Rule>>>, role: &Value) -> Result<Arc<Vec<Rule>>, Arc<str>> {
    let name = role.text(&["name"]);
    cluster_roles.get(name).cloned().ok_or_else(|| format!("clusterrole.{GROUP} {name:?} not found").into())
}

fn rules_of(role: &Value) -> Vec<Rule> {
    role.items(&["rules"]).iter().map(Rule::from_value).collect()
}

impl BySubject {
    /// Calls `each` with the user's bindings until it returns false, and returns what it returned last.
    fn visit(&self, user: &User, each: &mut impl FnMut(&Bound<'_>) -> bool) -> bool {
        let of_user = self.users.get_key_value(&user.name);
        let of_groups = user.groups.iter().filter_map(|group| self.groups.get_key_value(group));
        let mut visited = HashSet::new();
        of_user.into_iter().chain(of_groups).all(|(name, bindings)| {
            bindings.iter().all(|(kind, binding)| {
                !visited.insert(Arc::as_ptr(binding)) || each(&Bound { binding, kind: *kind, name })
            })
        })
    }

    fn add(
        &mut self,
        binding: &Value,
        namespace: &str,
        resolve: impl FnOnce(&Value) -> Result<Arc<Vec<Rule>>, Arc<str>>,
    ) {
        let role = binding.at(&["roleRef"]);
        let compiled = Arc::new(Binding {
            name: binding.text(&["metadata", "name"]).to_owned(),
            namespace: namespace.to_owned(),
            role_kind: role.text(&["kind"]).to_owned(),
            role_name: role.text(&["name"]).to_owned(),
            rules: resolve(role),
        });
        for subject in binding.items(&["subjects"]) {
            let name = subject.text(&["name"]);
            let (map, key, kind) = match subject.text(&["kind"]) {
                "User" => (&mut self.users, name.to_owned(), SubjectKind::User),
                "Group" => (&mut self.groups, name.to_owned(), SubjectKind::Group),
                "ServiceAccount" => {
                    let of = match subject.text(&["namespace"]) {
                        "" => namespace,
                        of => of,
                    };
                    (&mut self.users, format!("{SERVICE_ACCOUNT}{of}:{name}"), SubjectKind::ServiceAccount)
                }
                _ => continue,
            };
            let bindings = map.entry(key).or_default();
            // A subject that the binding repeats: nothing was added since it was named.
            if !bindings.last().is_some_and(|(_, last)| Arc::ptr_eq(last, &compiled)) {
                bindings.push((kind, Arc::clone(&compiled)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
