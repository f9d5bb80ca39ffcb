//! The built-in RBAC policy, read from `policy.txt`.
//!
//! The first line of a role is `ClusterRole NAME` or `Role NAMESPACE NAME`, with `into=X` for the role it is aggregated
//! into and `from=X` for one that aggregates others. The indented lines below are its rules: `VERBS GROUPS
//! RESOURCES [named NAMES]` or `VERBS url PATHS`, `core` being the group without a name. A binding is one line:
//! `ClusterRoleBinding NAME ROLE SUBJECT…` or `RoleBinding NAMESPACE NAME ROLE SUBJECT…`.

use serde_json::{Map, Value, json};

use super::DesiredObject;

const GROUP: &str = "rbac.authorization.k8s.io";
const POLICY: &str = include_str!("policy.txt");

pub fn desired_objects() -> Vec<DesiredObject> {
    let mut all: Vec<DesiredObject> = Vec::new();
    for line in POLICY.lines() {
        if let Some(rule) = line.strip_prefix("  ") {
            if let Some(Value::Array(rules)) = all.last_mut().and_then(|role| role.object.get_mut("rules")) {
                rules.push(parse_rule(rule));
            }
            continue;
        }
        let fields: Vec<&str> = line.split(' ').collect();
        all.push(match fields.as_slice() {
            ["ClusterRole", name, marks @ ..] => cluster_role(name, marks),
            ["Role", namespace, name] => {
                let mut object = object("Role", name);
                object["metadata"]["namespace"] = (*namespace).into();
                object["rules"] = json!([]);
                DesiredObject::new(GROUP, "roles", object)
            }
            ["ClusterRoleBinding", name, role, subjects @ ..] => DesiredObject::new(
                GROUP,
                "clusterrolebindings",
                binding(object("ClusterRoleBinding", name), role, subjects),
            ),
            ["RoleBinding", namespace, name, role, subjects @ ..] => {
                let mut object = object("RoleBinding", name);
                object["metadata"]["namespace"] = (*namespace).into();
                DesiredObject::new(GROUP, "rolebindings", binding(object, role, subjects))
            }
            _ => unreachable!("invalid line in the built-in policy: {line}"),
        });
    }
    all
}

/// The user of this server's client certificate for kubelets.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// Allows this server's client certificate to use the kubelet API. Kubernetes leaves this binding to installers.
pub fn kubelet_client() -> DesiredObject {
    let binding_of = object("ClusterRoleBinding", "system:kube-apiserver-kubelet-client");
    let subject = format!("User/{}", KUBELET_CLIENT);
    let object = binding(binding_of, "ClusterRole/system:kubelet-api-admin", &[subject.as_str()]);
    DesiredObject::new(GROUP, "clusterrolebindings", object)
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

fn cluster_role(name: &str, marks: &[&str]) -> DesiredObject {
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
    DesiredObject::new(GROUP, "clusterroles", role)
}

fn aggregate_label(role: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{role}")
}

fn parse_rule(line: &str) -> Value {
    let list = |fields: &str| -> Vec<String> {
        fields.split(',').map(|word| if word == "core" { String::new() } else { word.to_owned() }).collect()
    };
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        [verbs, "url", paths] => json!({"verbs": list(verbs), "nonResourceURLs": list(paths)}),
        [verbs, groups, resources] => {
            json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)})
        }
        [verbs, groups, resources, "named", names] => json!({
            "verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources), "resourceNames": list(names),
        }),
        _ => unreachable!("invalid rule in the built-in policy: {line}"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorize::Rule;
    use crate::request::Target;
    use knarr_api::value::Read;

    /// The rules of an aggregated role.
    fn aggregated_into(role: &str) -> Vec<Rule> {
        let all = desired_objects();
        let below = |name: &str| -> Vec<String> {
            let label = aggregate_label(name);
            let labelled = all.iter().filter(|one| one.object.at(&["metadata", "labels"]).get(&label).is_some());
            labelled.map(|one| one.name().to_owned()).collect()
        };
        let mut names = below(role);
        let mut at = 0;
        while let Some(name) = names.get(at).cloned() {
            names.extend(below(&name));
            at += 1;
        }
        let roles = all.iter().filter(|one| {
            one.resource == "clusterroles"
                && names.contains(&one.object["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        });
        roles.flat_map(|role| role.object.items(&["rules"]).iter().map(Rule::from_value)).collect()
    }

    /// CVE-2020-8554 and CVE-2021-25740: editors of a namespace can set neither load balancer addresses nor endpoints.
    #[test]
    fn editors_cannot_redirect_the_traffic_of_others() {
        for role in ["view", "edit", "admin"] {
            let rules = aggregated_into(role);
            let may = |verb: &str, group: &str, resource: &str, subresource: &str| {
                let target = Target {
                    verb: verb.into(),
                    group: group.into(),
                    resource: resource.into(),
                    subresource: subresource.into(),
                    namespace: "n".into(),
                    ..Target::default()
                };
                rules.iter().any(|rule| rule.allows(&target))
            };
            assert!(may("get", "", "services", ""), "{role} has its rules");
            assert_eq!(may("create", "", "services", ""), role != "view");
            for verb in ["create", "update", "patch", "delete"] {
                assert!(!may(verb, "", "services", "status"), "{role} may {verb} services/status");
                assert!(!may(verb, "", "nodes", ""), "{role} may {verb} nodes");
            }
            for verb in ["create", "update", "patch"] {
                assert!(!may(verb, "", "endpoints", ""), "{role} may {verb} endpoints");
                assert!(!may(verb, "discovery.k8s.io", "endpointslices", ""), "{role} may {verb} endpointslices");
            }
        }
    }
}
