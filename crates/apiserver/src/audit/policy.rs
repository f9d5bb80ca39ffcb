//! Audit policies: how much of each request is recorded.

use knarr_api::decode;
use knarr_api::value::Read;
use serde_json::Value;

use crate::request::{Target, User};

/// How much of a request is recorded, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }

    fn parse(name: &str) -> Option<Level> {
        [Level::None, Level::Metadata, Level::Request, Level::RequestResponse]
            .into_iter()
            .find(|level| level.name() == name)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyError {
    #[error("the audit policy cannot be read: {0}")]
    Unreadable(String),
    #[error("rules[{0}].level: {1:?} is not a level")]
    Level(usize, String),
}

pub struct Policy {
    rules: Vec<Rule>,
    omitted: Vec<String>,
    omits_managed: bool,
}

struct Rule {
    level: Level,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    namespaces: Vec<String>,
    resources: Vec<Resources>,
    paths: Vec<String>,
    omitted: Vec<String>,
    omits_managed: Option<bool>,
}

struct Resources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

/// What is recorded of one request, as the policy decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAuditConfig {
    pub level: Level,
    /// Stages that are not recorded.
    pub omitted: Vec<String>,
    pub omits_managed: bool,
}

impl Policy {
    /// Parses a policy file in YAML or JSON.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let decoded = decode::untyped_yaml(text.as_bytes());
        let document = decoded.map_err(|error| PolicyError::Unreadable(error.to_string()))?.value;
        if document.text(&["kind"]) != "Policy" {
            return Err(PolicyError::Unreadable(format!("its kind is {:?}", document.text(&["kind"]))));
        }
        let rules = document.items(&["rules"]).iter().enumerate().map(|(at, rule)| Rule::read(at, rule));
        Ok(Policy {
            rules: rules.collect::<Result<_, _>>()?,
            omitted: texts(&document, "omitStages"),
            omits_managed: document.flag(&["omitManagedFields"]) == Some(true),
        })
    }

    /// What is recorded of a request. The first matching rule decides; without one, nothing is recorded.
    pub fn evaluate(&self, user: Option<&User>, target: &Target) -> RequestAuditConfig {
        let mut omitted = self.omitted.clone();
        match self.rules.iter().find(|rule| rule.matches(user, target)) {
            None => RequestAuditConfig { level: Level::None, omitted, omits_managed: self.omits_managed },
            Some(rule) => {
                omitted.extend(rule.omitted.iter().cloned());
                let omits_managed = rule.omits_managed.unwrap_or(self.omits_managed);
                RequestAuditConfig { level: rule.level, omitted, omits_managed }
            }
        }
    }
}

fn texts(value: &Value, field: &str) -> Vec<String> {
    value.items(&[field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Rule {
    fn read(at: usize, rule: &Value) -> Result<Rule, PolicyError> {
        let level = rule.text(&["level"]);
        let resources = rule.items(&["resources"]).iter().map(|one| Resources {
            group: one.text(&["group"]).to_owned(),
            resources: texts(one, "resources"),
            names: texts(one, "resourceNames"),
        });
        Ok(Rule {
            level: Level::parse(level).ok_or_else(|| PolicyError::Level(at, level.to_owned()))?,
            users: texts(rule, "users"),
            groups: texts(rule, "userGroups"),
            verbs: texts(rule, "verbs"),
            namespaces: texts(rule, "namespaces"),
            resources: resources.collect(),
            paths: texts(rule, "nonResourceURLs"),
            omitted: texts(rule, "omitStages"),
            omits_managed: rule.flag(&["omitManagedFields"]),
        })
    }

    fn matches(&self, user: Option<&User>, target: &Target) -> bool {
        let allows = |list: &[String], text: &str| list.is_empty() || list.iter().any(|own| own == text);
        let user_matches = allows(&self.users, user.map_or("", |user| &user.name));
        let group_matches = self.groups.is_empty()
            || user.is_some_and(|user| user.groups.iter().any(|group| self.groups.contains(group)));
        if !user_matches || !group_matches || !allows(&self.verbs, &target.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return target.is_resource()
                && allows(&self.namespaces, &target.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|one| one.matches(target)));
        }
        self.paths.is_empty() || !target.is_resource() && self.paths.iter().any(|path| path_matches(path, &target.path))
    }
}

impl Resources {
    fn matches(&self, target: &Target) -> bool {
        if self.group != "*" && self.group != target.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.names.is_empty() && !self.names.contains(&target.name) {
            return false;
        }
        let (resource, subresource) = (target.resource.as_str(), target.subresource.as_str());
        self.resources.iter().any(|own| match own.split_once('/') {
            None => own == "*" || own == resource && subresource.is_empty(),
            Some(("*", below)) => !subresource.is_empty() && below == subresource,
            Some((of, "*")) => of == resource,
            Some((of, below)) => of == resource && below == subresource,
        })
    }
}

fn path_matches(own: &str, path: &str) -> bool {
    own == "*" || own == path || own.strip_suffix('*').is_some_and(|start| path.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_a_request_decides() {
        let policy = Policy::parse(
            "kind: Policy\nomitStages: [RequestReceived]\nrules:\n\
             - {level: None, users: [system:kube-proxy], verbs: [watch]}\n\
             - {level: RequestResponse, resources: [{group: '', resources: [pods]}]}\n\
             - {level: Metadata, resources: [{group: '', resources: ['pods/log', '*/status']}]}\n\
             - {level: None, nonResourceURLs: ['/healthz*']}\n\
             - {level: Request, userGroups: [devs]}\n",
        )
        .unwrap();
        let target = |verb: &str, resource: &str, path: &str| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            Target {
                verb: verb.into(),
                resource: resource.into(),
                subresource: subresource.into(),
                path: path.into(),
                ..Target::default()
            }
        };
        let proxy = User::named("system:kube-proxy", &[]);
        let dev = User::named("ann", &["devs"]);
        for (user, target, level) in [
            (&proxy, target("watch", "pods", ""), Level::None),
            (&proxy, target("get", "pods", ""), Level::RequestResponse),
            (&proxy, target("get", "pods/log", ""), Level::Metadata),
            (&proxy, target("update", "nodes/status", ""), Level::Metadata),
            (&dev, target("get", "", "/healthz/etcd"), Level::None),
            (&dev, target("get", "", "/version"), Level::Request),
            (&proxy, target("get", "", "/version"), Level::None),
        ] {
            let config = policy.evaluate(Some(user), &target);
            assert_eq!(config.level, level, "{} {target:?}", user.name);
            assert_eq!(config.omitted, ["RequestReceived"]);
        }
        assert_eq!(
            Policy::parse("kind: Policy\nrules: [{level: Loud}]").err(),
            Some(PolicyError::Level(0, "Loud".to_owned()))
        );
    }
}
