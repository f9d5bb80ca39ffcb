//! The built-in RBAC policy, read from `policy.txt`.
//!
//! A line that begins a role is `ClusterRole NAME` or `Role NAMESPACE NAME`, with `into=X` for the role it is aggregated
//! into and `from=X` for one that is made by aggregation. The indented lines below are its rules: `VERBS GROUPS
//! RESOURCES [named NAMES]` or `VERBS url PATHS`, `core` being the group without a name. A binding is one line:
//! `ClusterRoleBinding NAME ROLE SUBJECT…` or `RoleBinding NAMESPACE NAME ROLE SUBJECT…`.

use serde_json::{Map, Value, json};

use super::Wanted;

const GROUP: &str = "rbac.authorization.k8s.io";
const POLICY: &str = include_str!("policy.txt");

pub fn wanted() -> Vec<Wanted> {
    let mut all: Vec<Wanted> = Vec::new();
    for line in POLICY.lines() {
        if let Some(rule) = line.strip_prefix("  ") {
            if let Some(Value::Array(rules)) = all.last_mut().and_then(|role| role.object.get_mut("rules")) {
                rules.push(parse_rule(rule));
            }
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        all.push(match words.as_slice() {
            ["ClusterRole", name, marks @ ..] => cluster_role(name, marks),
            ["Role", namespace, name] => {
                let mut object = object("Role", name);
                object["metadata"]["namespace"] = (*namespace).into();
                object["rules"] = json!([]);
                Wanted::new(GROUP, "roles", object)
            }
            ["ClusterRoleBinding", name, role, subjects @ ..] => {
                Wanted::new(GROUP, "clusterrolebindings", binding(object("ClusterRoleBinding", name), role, subjects))
            }
            ["RoleBinding", namespace, name, role, subjects @ ..] => {
                let mut object = object("RoleBinding", name);
                object["metadata"]["namespace"] = (*namespace).into();
                Wanted::new(GROUP, "rolebindings", binding(object, role, subjects))
            }
            _ => unreachable!("the built-in policy has a line of no known form: {line}"),
        });
    }
    all
}

fn object(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        },
    })
}

fn cluster_role(name: &str, marks: &[&str]) -> Wanted {
    let mut role = object("ClusterRole", name);
    role["rules"] = json!([]);
    for mark in marks {
        if let Some(into) = mark.strip_prefix("into=") {
            role["metadata"]["labels"][aggregate_label(into)] = "true".into();
        }
        if let Some(from) = mark.strip_prefix("from=") {
            let mut labels = Map::new();
            labels.insert(aggregate_label(from), "true".into());
            role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
            role["rules"] = Value::Null;
        }
    }
    Wanted::new(GROUP, "clusterroles", role)
}

fn aggregate_label(role: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{role}")
}

fn parse_rule(line: &str) -> Value {
    let list = |words: &str| -> Vec<String> {
        words.split(',').map(|word| if word == "core" { String::new() } else { word.to_owned() }).collect()
    };
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        [verbs, "url", paths] => json!({"verbs": list(verbs), "nonResourceURLs": list(paths)}),
        [verbs, groups, resources] => {
            json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)})
        }
        [verbs, groups, resources, "named", names] => json!({
            "verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources), "resourceNames": list(names),
        }),
        _ => unreachable!("the built-in policy has a rule of no known form: {line}"),
    }
}

fn binding(mut object: Value, role: &str, subjects: &[&str]) -> Value {
    let (kind, name) = role.split_once('/').unwrap_or(("ClusterRole", role));
    object["roleRef"] = json!({"apiGroup": GROUP, "kind": kind, "name": name});
    let subjects: Vec<Value> = subjects.iter().map(|subject| parse_subject(subject)).collect();
    if !subjects.is_empty() {
        object["subjects"] = subjects.into();
    }
    object
}

fn parse_subject(subject: &str) -> Value {
    match subject.splitn(3, '/').collect::<Vec<_>>().as_slice() {
        ["ServiceAccount", namespace, name] => json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}),
        [kind, name @ ..] => json!({"kind": kind, "apiGroup": GROUP, "name": name.join("/")}),
        [] => Value::Null,
    }
}
