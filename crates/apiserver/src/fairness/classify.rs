//! Finds the FlowSchema of a request: the first match in the order of precedence.

use std::sync::Arc;

use http::HeaderValue;
use knarr_api::value::Read;
use serde_json::Value;

use super::built_in;
use super::level::Level;
use super::registry::{KnownLevels, StatsRegistry};
use super::stats::FlowStats;
use crate::request::{Target, User};

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The wildcard of all lists. In lists of paths it is also a suffix.
const ALL: &str = "*";

/// The FlowSchema and priority level of a request.
pub struct Class {
    pub schema: Arc<str>,
    pub schema_uid: HeaderValue,
    pub level: Arc<Level>,
    pub level_uid: HeaderValue,
    pub stats: Arc<FlowStats>,
    /// Whether its requests are never limited.
    pub exempt: bool,
    distinguisher: Distinguisher,
}

/// What distinguishes the flows of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Distinguisher {
    Nothing,
    User,
    Namespace,
}

impl Class {
    /// The part of its requests that the request belongs to.
    pub fn flow(&self, user: &User, target: &Target) -> Arc<str> {
        match self.distinguisher {
            _ if self.exempt => "".into(),
            Distinguisher::Nothing => "".into(),
            Distinguisher::User => user.name.as_str().into(),
            Distinguisher::Namespace => target.namespace.as_str().into(),
        }
    }
}

/// All FlowSchemas in the order in which they are tried.
pub struct Classifier {
    schemas: Vec<Schema>,
    /// For users in neither of the groups that the last schema names.
    fallback: Option<Arc<Class>>,
}

struct Schema {
    precedence: i64,
    rules: Vec<PolicyRule>,
    class: Arc<Class>,
}

struct PolicyRule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    /// With their subresources: `pods/log`.
    resources: Vec<String>,
    cluster_scope: bool,
    namespaces: Vec<String>,
}

struct PathRule {
    verbs: Vec<String>,
    paths: Vec<String>,
}

impl Classifier {
    /// Schemas that name a level which does not exist are left out. The mandatory objects count as existing.
    pub fn new(schemas: &[Arc<Value>], levels: &KnownLevels, stats: &StatsRegistry) -> Classifier {
        let compile = |schema: &Value| {
            let (level, uid) = levels.get(schema.text(&["spec", "priorityLevelConfiguration", "name"]))?;
            Some(Schema::new(schema, level, uid.clone(), stats))
        };
        let mut compiled: Vec<Schema> = schemas.iter().filter_map(|schema| compile(schema)).collect();
        for desired in built_in::mandatory(super::SCHEMAS) {
            if compiled.iter().all(|schema| *schema.class.schema != *desired.name()) {
                compiled.extend(compile(&desired.object));
            }
        }
        compiled.sort_by(|a, b| (a.precedence, &a.class.schema).cmp(&(b.precedence, &b.class.schema)));
        let catch_all = compiled.iter().find(|schema| &*schema.class.schema == built_in::CATCH_ALL).or(compiled.last());
        let fallback = catch_all.map(|schema| schema.class.clone());
        Classifier { schemas: compiled, fallback }
    }

    /// The class of a request.
    pub fn classify(&self, user: &User, target: &Target) -> Option<&Arc<Class>> {
        let resource = match target.subresource.as_str() {
            "" => target.resource.clone(),
            subresource => format!("{}/{subresource}", target.resource),
        };
        let found = self.schemas.iter().find(|schema| schema.matches(user, target, &resource));
        found.map(|schema| &schema.class).or(self.fallback.as_ref())
    }
}

impl Schema {
    fn new(schema: &Value, level: &Arc<Level>, level_uid: HeaderValue, stats: &StatsRegistry) -> Schema {
        let name = schema.text(&["metadata", "name"]);
        let uid = HeaderValue::from_str(schema.text(&["metadata", "uid"])).unwrap_or(HeaderValue::from_static(""));
        let class = Class {
            schema: name.into(),
            schema_uid: uid,
            level: level.clone(),
            level_uid,
            stats: stats.of(&level.name, name),
            exempt: level.is_exempt(),
            distinguisher: match schema.text(&["spec", "distinguisherMethod", "type"]) {
                "ByUser" => Distinguisher::User,
                "ByNamespace" => Distinguisher::Namespace,
                _ => Distinguisher::Nothing,
            },
        };
        Schema {
            precedence: schema.integer(&["spec", "matchingPrecedence"]).unwrap_or(1000),
            rules: schema.items(&["spec", "rules"]).iter().map(PolicyRule::new).collect(),
            class: Arc::new(class),
        }
    }

    fn matches(&self, user: &User, target: &Target, resource: &str) -> bool {
        self.rules.iter().any(|rule| rule.matches(user, target, resource))
    }
}

impl PolicyRule {
    fn new(rule: &Value) -> PolicyRule {
        let resources = rule.items(&["resourceRules"]).iter().map(|rule| ResourceRule {
            verbs: texts(rule, "verbs"),
            groups: texts(rule, "apiGroups"),
            resources: texts(rule, "resources"),
            cluster_scope: rule.flag(&["clusterScope"]) == Some(true),
            namespaces: texts(rule, "namespaces"),
        });
        let paths = rule.items(&["nonResourceRules"]).iter();
        let paths = paths.map(|rule| PathRule { verbs: texts(rule, "verbs"), paths: texts(rule, "nonResourceURLs") });
        PolicyRule {
            subjects: rule.items(&["subjects"]).iter().filter_map(Subject::new).collect(),
            resources: resources.collect(),
            paths: paths.collect(),
        }
    }

    fn matches(&self, user: &User, target: &Target, resource: &str) -> bool {
        if !self.subjects.iter().any(|subject| subject.matches(user)) {
            return false;
        }
        if target.is_resource() {
            self.resources.iter().any(|rule| rule.matches(target, resource))
        } else {
            self.paths.iter().any(|rule| rule.matches(target))
        }
    }
}

impl Subject {
    fn new(subject: &Value) -> Option<Subject> {
        match subject.text(&["kind"]) {
            "User" => Some(Subject::User(subject.text(&["user", "name"]).to_owned())),
            "Group" => Some(Subject::Group(subject.text(&["group", "name"]).to_owned())),
            "ServiceAccount" => Some(Subject::ServiceAccount {
                namespace: subject.text(&["serviceAccount", "namespace"]).to_owned(),
                name: subject.text(&["serviceAccount", "name"]).to_owned(),
            }),
            _ => None,
        }
    }

    fn matches(&self, user: &User) -> bool {
        match self {
            Subject::User(name) => name == ALL || *name == user.name,
            Subject::Group(name) => name == ALL || user.is_in(name),
            Subject::ServiceAccount { namespace, name } => {
                let own = user.name.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|own| own.split_once(':'));
                own.is_some_and(|own| own.0 == namespace && (name == ALL || own.1 == name))
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, target: &Target, resource: &str) -> bool {
        has(&self.verbs, &target.verb)
            && has(&self.resources, resource)
            && has(&self.groups, &target.group)
            && match target.namespace.as_str() {
                "" => self.cluster_scope,
                namespace => has(&self.namespaces, namespace),
            }
    }
}

impl PathRule {
    fn matches(&self, target: &Target) -> bool {
        has(&self.verbs, &target.verb) && self.paths.iter().any(|own| path_matches(own, &target.path))
    }
}

fn texts(value: &Value, field: &str) -> Vec<String> {
    value.items(&[field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A wildcard is the only element of its list.
fn has(list: &[String], desired: &str) -> bool {
    matches!(list, [only] if only == ALL) || list.iter().any(|own| own == desired)
}

/// The path itself, and everything below it.
fn path_matches(own: &str, path: &str) -> bool {
    if own == ALL || own == path {
        return true;
    }
    let prefix = own.strip_suffix(ALL).unwrap_or(own);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The built-in objects, with UIDs made of their names.
    fn objects(resource: &str) -> Vec<Arc<Value>> {
        let own = built_in::all().into_iter().filter(|desired| desired.resource == resource);
        own.map(|mut desired| {
            desired.object["metadata"]["uid"] = format!("uid-{}", desired.name()).into();
            Arc::new(desired.object)
        })
        .collect()
    }

    fn resource(verb: &str, group: &str, namespace: &str, resource: &str) -> Target {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Target {
            verb: verb.into(),
            group: group.into(),
            namespace: namespace.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            ..Target::default()
        }
    }

    fn path(verb: &str, path: &str) -> Target {
        Target { verb: verb.into(), path: path.into(), ..Target::default() }
    }

    fn classifier(schemas: &[Arc<Value>], levels: &[Arc<Value>]) -> Classifier {
        Classifier::new(schemas, &KnownLevels::new(levels, &[]), &StatsRegistry::default())
    }

    const AUTHENTICATED: &str = "system:authenticated";

    #[test]
    fn requests_match_the_built_in_schemas() {
        let classifier = classifier(&objects(super::super::SCHEMAS), &objects(super::super::LEVELS));
        let admin = User::named("admin", &["system:masters", AUTHENTICATED]);
        let node = User::named("system:node:a", &["system:nodes", AUTHENTICATED]);
        let manager = User::named("system:kube-controller-manager", &[AUTHENTICATED]);
        let scheduler = User::named("system:kube-scheduler", &[AUTHENTICATED]);
        let account = |namespace: &str| {
            let name = format!("system:serviceaccount:{namespace}:a");
            User::named(&name, &["system:serviceaccounts", AUTHENTICATED])
        };
        let someone = User::named("ann", &[AUTHENTICATED]);
        let anonymous = User::anonymous();
        let leases = "coordination.k8s.io";
        for (user, target, schema, level) in [
            (&admin, resource("get", "", "a", "pods"), "exempt", "exempt"),
            (&anonymous, path("get", "/healthz"), "probes", "exempt"),
            (&anonymous, path("get", "/readyz/etcd"), "probes", "exempt"),
            (&anonymous, path("get", "/readyzetcd"), "global-default", "global-default"),
            (&anonymous, path("post", "/healthz"), "global-default", "global-default"),
            (
                &manager,
                resource("update", leases, "kube-system", "leases"),
                "system-leader-election",
                "leader-election",
            ),
            (&manager, resource("list", leases, "kube-system", "leases"), "kube-controller-manager", "workload-high"),
            (&scheduler, resource("create", "", "a", "pods/binding"), "kube-scheduler", "workload-high"),
            (&node, resource("patch", "", "", "nodes/status"), "system-node-high", "node-high"),
            (&node, resource("update", leases, "kube-node-lease", "leases"), "system-node-high", "node-high"),
            (&node, resource("get", "", "a", "pods"), "system-nodes", "system"),
            (&node, resource("get", "", "", "nodes/proxy"), "system-nodes", "system"),
            (
                &account("kube-system"),
                resource("get", "", "a", "pods"),
                "kube-system-service-accounts",
                "workload-high",
            ),
            (&account("kube-systemx"), resource("get", "", "a", "pods"), "service-accounts", "workload-low"),
            (&account("a"), path("get", "/version"), "service-accounts", "workload-low"),
            (&someone, resource("watch", "apps", "", "deployments"), "global-default", "global-default"),
            (&User::named("odd", &[]), path("get", "/version"), "catch-all", "catch-all"),
        ] {
            let class = classifier.classify(user, &target).unwrap();
            assert_eq!((&*class.schema, &*class.level.name), (schema, level), "{} {target:?}", user.name);
            assert_eq!(class.schema_uid, format!("uid-{schema}"));
            assert_eq!(class.level_uid, format!("uid-{level}"));
            assert_eq!(class.exempt, level == "exempt");
        }
    }

    #[test]
    fn schemas_are_tried_in_the_order_of_precedence_and_name() {
        let own = |name: &str, precedence: i64, level: &str, namespaces: Value| {
            Arc::new(json!({
                "metadata": {"name": name, "uid": name},
                "spec": {
                    "matchingPrecedence": precedence, "priorityLevelConfiguration": {"name": level},
                    "rules": [{
                        "subjects": [{"kind": "User", "user": {"name": "*"}}],
                        "resourceRules": [{
                            "verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": namespaces,
                        }],
                    }],
                },
            }))
        };
        let mut schemas = objects(super::super::SCHEMAS);
        schemas.extend([
            own("zeta", 700, "system", json!(["one"])),
            own("beta", 700, "system", json!(["one", "two"])),
            own("first", 600, "gone", json!(["*"])),
        ]);
        let classifier = classifier(&schemas, &objects(super::super::LEVELS));
        let ann = User::named("ann", &[AUTHENTICATED]);
        for (namespace, schema) in
            [("one", "beta"), ("two", "beta"), ("three", "global-default"), ("", "global-default")]
        {
            let class = classifier.classify(&ann, &resource("get", "", namespace, "pods")).unwrap();
            assert_eq!(&*class.schema, schema, "{namespace}");
        }
    }

    #[test]
    fn without_objects_the_mandatory_schemas_remain() {
        let classifier = classifier(&[], &[]);
        let admin = User::named("admin", &["system:masters", AUTHENTICATED]);
        let ann = User::named("ann", &[AUTHENTICATED]);
        let pods = resource("get", "", "a", "pods");
        let class = classifier.classify(&admin, &pods).unwrap();
        assert_eq!((&*class.schema, class.exempt), ("exempt", true));
        let class = classifier.classify(&ann, &pods).unwrap();
        assert_eq!((&*class.schema, class.schema_uid.as_bytes()), ("catch-all", &b""[..]));
    }
}
