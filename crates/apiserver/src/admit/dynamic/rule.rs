//! Match rules: operations, groups, versions, resources and scope.

use knarr_api::value::Read;
use serde_json::Value;

#[derive(Debug)]
pub struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resources and subresources.
    resources: Vec<(String, String)>,
    scope: Scope,
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
}

/// The attributes of a write that rules match.
#[derive(Clone, Copy, Debug)]
pub struct WriteAttributes<'a> {
    pub operation: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Rule {
    pub fn read(rule: &Value) -> Rule {
        let texts = |field: &str| -> Vec<String> {
            rule.items(&[field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let split = |text: String| match text.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (text, String::new()),
        };
        Rule {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: texts("resources").into_iter().map(split).collect(),
            scope: match rule.text(&["scope"]) {
                "Cluster" => Scope::Cluster,
                "Namespaced" => Scope::Namespaced,
                _ => Scope::All,
            },
            names: texts("resourceNames"),
        }
    }

    pub fn matches(&self, write: &WriteAttributes<'_>) -> bool {
        let one_of = |list: &[String], value: &str| list.iter().any(|own| own == "*" || own == value);
        let is_namespace = write.resource == "namespaces" && write.group.is_empty();
        let in_scope = match self.scope {
            Scope::All => true,
            Scope::Cluster => is_namespace || write.namespace.is_empty(),
            Scope::Namespaced => !is_namespace && !write.namespace.is_empty(),
        };
        in_scope
            && one_of(&self.operations, write.operation)
            && one_of(&self.groups, write.group)
            && one_of(&self.versions, write.version)
            && self.resources.iter().any(|(resource, subresource)| {
                (resource == "*" || resource == write.resource)
                    && (subresource == "*" || subresource == write.subresource)
            })
            && (self.names.is_empty() || self.names.iter().any(|name| name == write.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_match_what_they_name() {
        let write = |resource: &'static str, namespace: &'static str| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            WriteAttributes {
                operation: "CREATE",
                group: "",
                version: "v1",
                resource,
                subresource,
                namespace,
                name: "n",
            }
        };
        let table = [
            (json!({"resources": ["pods"]}), "pods", "a", true),
            (json!({"resources": ["pods"]}), "pods/status", "a", false),
            (json!({"resources": ["pods/*"]}), "pods", "a", true),
            (json!({"resources": ["pods/*"]}), "pods/status", "a", true),
            (json!({"resources": ["*/status"]}), "pods/status", "a", true),
            (json!({"resources": ["*"]}), "pods/status", "a", false),
            (json!({"resources": ["*/*"]}), "pods/status", "a", true),
            (json!({"resources": ["*"], "scope": "Cluster"}), "namespaces", "a", true),
            (json!({"resources": ["*"], "scope": "Namespaced"}), "pods", "a", true),
            (json!({"resources": ["*"], "scope": "Namespaced"}), "nodes", "", false),
            (json!({"resources": ["*"], "resourceNames": ["m"]}), "pods", "a", false),
            (json!({"resources": ["*"], "operations": ["DELETE"]}), "pods", "a", false),
        ];
        for (mut rule, resource, namespace, expected) in table {
            for (field, value) in [("operations", "*"), ("apiGroups", ""), ("apiVersions", "v1")] {
                if !rule.has(&[field]) {
                    rule[field] = json!([value]);
                }
            }
            assert_eq!(Rule::read(&rule).matches(&write(resource, namespace)), expected, "{rule} {resource}");
        }
    }
}
