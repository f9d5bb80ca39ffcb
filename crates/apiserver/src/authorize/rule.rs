//! A rule of a role: which verbs it allows on which resources or paths.

use knarr_api::value::Read;
use serde_json::Value;

use crate::request::Target;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub names: Vec<String>,
    pub paths: Vec<String>,
}

impl Rule {
    pub fn from_value(value: &Value) -> Self {
        Rule {
            verbs: strings(value, "verbs"),
            groups: strings(value, "apiGroups"),
            resources: strings(value, "resources"),
            names: strings(value, "resourceNames"),
            paths: strings(value, "nonResourceURLs"),
        }
    }

    pub fn allows(&self, target: &Target) -> bool {
        if !has(&self.verbs, &target.verb) {
            return false;
        }
        if !target.is_resource() {
            return self.paths.iter().any(|path| path_matches(path, &target.path));
        }
        has(&self.groups, &target.group)
            && self.resources.iter().any(|own| resource_matches(own, &target.resource, &target.subresource))
            && (self.names.is_empty() || self.names.contains(&target.name))
    }
}

fn strings(value: &Value, field: &str) -> Vec<String> {
    value.items(&[field]).iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn has(list: &[String], requested: &str) -> bool {
    list.iter().any(|item| item == "*" || item == requested)
}

/// `pods`, `pods/log`, `*/scale` or `*`.
fn resource_matches(own: &str, resource: &str, subresource: &str) -> bool {
    if own == "*" {
        return true;
    }
    if subresource.is_empty() {
        // An access review may name `pods/log` as one string.
        return own == resource;
    }
    let of = own.strip_suffix(subresource).and_then(|of| of.strip_suffix('/'));
    of.is_some_and(|of| of == "*" || of == resource)
}

/// Whether a rule's path matches: an exact path, or a prefix that ends in `*`.
fn path_matches(own: &str, path: &str) -> bool {
    match own.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => own == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_allow_what_they_name() {
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"]});
        let named = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["secrets"], "resourceNames": ["a"]});
        let scales = json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["*/scale"]});
        let target = |verb: &str, group: &str, resource: &str, name: &str| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            Target {
                verb: verb.into(),
                group: group.into(),
                resource: resource.into(),
                subresource: subresource.into(),
                name: name.into(),
                ..Target::default()
            }
        };
        for (rule, target, allowed) in [
            (&pods, target("get", "", "pods", "x"), true),
            (&pods, target("list", "", "pods", ""), false),
            (&pods, target("get", "", "pods/log", "x"), true),
            (&pods, target("get", "", "pods/exec", "x"), false),
            (&pods, target("get", "apps", "pods", "x"), false),
            (&named, target("delete", "", "secrets", "a"), true),
            (&named, target("delete", "", "secrets", "b"), false),
            (&named, target("list", "", "secrets", ""), false),
            (&scales, target("get", "apps", "deployments/scale", "x"), true),
            (&scales, target("get", "apps", "deployments", "x"), false),
        ] {
            assert_eq!(Rule::from_value(rule).allows(&target), allowed, "{target:?}");
        }
    }

    #[test]
    fn a_subresource_may_be_asked_for_as_part_of_the_resource() {
        for (own, resource, subresource, matches) in [
            ("prometheuses/status", "prometheuses/status", "", true),
            ("prometheuses/status", "prometheuses", "status", true),
            ("prometheuses", "prometheuses/status", "", false),
            ("*/status", "prometheuses/status", "", false),
            ("*/status", "prometheuses", "status", true),
            ("prometheuses/status", "prometheuses", "", false),
            ("prometheuses", "prometheuses", "status", false),
            ("*", "prometheuses/status", "", true),
        ] {
            assert_eq!(resource_matches(own, resource, subresource), matches, "{own} {resource} {subresource}");
        }
    }

    #[test]
    fn paths_match_exactly_or_by_prefix() {
        for (own, path, matches) in [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/a", false),
            ("/healthz/*", "/healthz/a", true),
            ("*", "/x", true),
        ] {
            assert_eq!(path_matches(own, path), matches, "{own} {path}");
        }
    }
}
