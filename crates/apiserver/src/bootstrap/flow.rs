//! The built-in FlowSchemas and PriorityLevelConfigurations of Kubernetes.

use serde_json::{Value, json};

use super::DesiredObject;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

struct Schema {
    name: &'static str,
    level: &'static str,
    precedence: u32,
    distinguish_by: Option<&'static str>,
    subjects: &'static [Subject],
    rules: Rules,
}

enum Subject {
    Group(&'static str),
    User(&'static str),
    SystemServiceAccounts,
}

enum Rules {
    Everything,
    Probes,
    Leases,
    Nodes,
}

const EVERYBODY: &[Subject] = &[Subject::Group("system:unauthenticated"), Subject::Group("system:authenticated")];
const MANAGER: Subject = Subject::User("system:kube-controller-manager");
const SCHEDULER: Subject = Subject::User("system:kube-scheduler");

const SCHEMAS: &[Schema] = &[
    schema("exempt", "exempt", 1, None, &[Subject::Group("system:masters")], Rules::Everything),
    schema("probes", "exempt", 2, None, EVERYBODY, Rules::Probes),
    schema(
        "system-leader-election",
        "leader-election",
        100,
        Some("ByUser"),
        &[MANAGER, SCHEDULER, Subject::SystemServiceAccounts],
        Rules::Leases,
    ),
    schema("system-node-high", "node-high", 400, Some("ByUser"), &[Subject::Group("system:nodes")], Rules::Nodes),
    schema("system-nodes", "system", 500, Some("ByUser"), &[Subject::Group("system:nodes")], Rules::Everything),
    schema("kube-controller-manager", "workload-high", 800, Some("ByNamespace"), &[MANAGER], Rules::Everything),
    schema("kube-scheduler", "workload-high", 800, Some("ByNamespace"), &[SCHEDULER], Rules::Everything),
    schema(
        "kube-system-service-accounts",
        "workload-high",
        900,
        Some("ByNamespace"),
        &[Subject::SystemServiceAccounts],
        Rules::Everything,
    ),
    schema(
        "service-accounts",
        "workload-low",
        9000,
        Some("ByUser"),
        &[Subject::Group("system:serviceaccounts")],
        Rules::Everything,
    ),
    schema("global-default", "global-default", 9900, Some("ByUser"), EVERYBODY, Rules::Everything),
    schema("catch-all", "catch-all", 10000, Some("ByUser"), EVERYBODY, Rules::Everything),
];

const fn schema(
    name: &'static str,
    level: &'static str,
    precedence: u32,
    distinguish_by: Option<&'static str>,
    subjects: &'static [Subject],
    rules: Rules,
) -> Schema {
    Schema { name, level, precedence, distinguish_by, subjects, rules }
}

/// Name, shares, lendable percent, and number of queues with hand size if requests may be queued.
const LEVELS: &[(&str, u32, u32, Option<(u32, u32)>)] = &[
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
    ("catch-all", 5, 0, None),
];

pub fn desired_objects() -> Vec<DesiredObject> {
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let mut all = vec![level("exempt", exempt)];
    all.extend(LEVELS.iter().map(|(name, shares, lendable, queues)| {
        let response = match queues {
            Some((queues, hand)) => json!({
                "type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50},
            }),
            None => json!({"type": "Reject"}),
        };
        let limited =
            json!({"nominalConcurrencyShares": shares, "limitResponse": response, "lendablePercent": lendable});
        level(name, json!({"type": "Limited", "limited": limited}))
    }));
    all.extend(SCHEMAS.iter().map(flow_schema));
    all
}

fn level(name: &str, spec: Value) -> DesiredObject {
    DesiredObject::new(GROUP, "prioritylevelconfigurations", object("PriorityLevelConfiguration", name, spec))
}

fn flow_schema(schema: &Schema) -> DesiredObject {
    let subjects: Vec<Value> = schema.subjects.iter().map(subject).collect();
    let mut rules = rules(&schema.rules);
    rules["subjects"] = subjects.into();
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": schema.level},
        "matchingPrecedence": schema.precedence,
        "rules": [rules],
    });
    if let Some(by) = schema.distinguish_by {
        spec["distinguisherMethod"] = json!({"type": by});
    }
    DesiredObject::new(GROUP, "flowschemas", object("FlowSchema", schema.name, spec))
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}},
        "spec": spec,
    })
}

fn subject(subject: &Subject) -> Value {
    match subject {
        Subject::Group(name) => json!({"kind": "Group", "group": {"name": name}}),
        Subject::User(name) => json!({"kind": "User", "user": {"name": name}}),
        Subject::SystemServiceAccounts => {
            json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}})
        }
    }
}

fn rules(rules: &Rules) -> Value {
    let everything = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
    });
    match rules {
        Rules::Everything => json!({
            "resourceRules": [everything],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }),
        Rules::Probes => json!({
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
        }),
        Rules::Leases => json!({"resourceRules": [{
            "verbs": ["get", "create", "update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
            "namespaces": ["*"],
        }]}),
        Rules::Nodes => json!({"resourceRules": [
            {
                "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"], "clusterScope": true,
                "namespaces": ["*"],
            },
            {"verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"]},
        ]}),
    }
}
