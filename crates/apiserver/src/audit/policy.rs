//! Audit policies: how much of each request is recorded.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use knarr_api::{decode, names};
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
    const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    pub fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }

    fn parse(name: &str) -> Option<Level> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyError {
    #[error("failed decoding: {0}")]
    Unreadable(String),
    #[error("unknown group version field {0} in policy")]
    GroupVersion(String),
    #[error("{0}")]
    Invalid(String),
    #[error("loaded illegal policy with 0 rules")]
    NoRules,
}

const STAGES: [&str; 4] = ["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"];

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
        let (version, kind) = (document.text(&["apiVersion"]), document.text(&["kind"]));
        if (version, kind) != ("audit.k8s.io/v1", "Policy") {
            return Err(PolicyError::GroupVersion(format!("{version}, Kind={kind}")));
        }
        check(&document)?;
        let rules: Vec<Rule> = document.items(&["rules"]).iter().map(Rule::read).collect();
        if rules.is_empty() {
            return Err(PolicyError::NoRules);
        }
        Ok(Policy {
            rules,
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

/// What Kubernetes refuses in a policy, with its messages.
fn check(document: &Value) -> Result<(), PolicyError> {
    let mut errors = Errors::new();
    check_stages(document.items(&["omitStages"]), &Path::root("omitStages"), &mut errors);
    let rules = Path::root("rules");
    for (index, rule) in document.items(&["rules"]).iter().enumerate() {
        check_rule(rule, &rules.index(index), &mut errors);
    }
    match errors.0.as_slice() {
        [] => Ok(()),
        [one] => Err(PolicyError::Invalid(one.to_string())),
        many => {
            let texts: Vec<String> = many.iter().map(ToString::to_string).collect();
            Err(PolicyError::Invalid(format!("[{}]", texts.join(", "))))
        }
    }
}

fn check_rule(rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    match rule.text(&["level"]) {
        "" => errors.required(&path.child("level"), ""),
        level if Level::parse(level).is_none() => {
            errors.not_supported(&path.child("level"), level, &Level::ALL.map(Level::name));
        }
        _ => {}
    }
    let urls = rule.items(&["nonResourceURLs"]);
    let urls_path = path.child("nonResourceURLs");
    for (at, url) in urls.iter().filter_map(Value::as_str).enumerate().filter(|(_, url)| *url != "*") {
        if !url.starts_with('/') {
            errors.invalid(&urls_path.index(at), url, "non-resource URL rules must begin with a '/' character");
        }
        if url.strip_suffix('*').unwrap_or(url).contains('*') {
            let why = "non-resource URL wildcards '*' must be the final character of the rule";
            errors.invalid(&urls_path.index(at), url, why);
        }
    }
    let resources_path = path.child("resources");
    for resource in rule.items(&["resources"]) {
        let group = resource.text(&["group"]);
        let wrong = if matches!(group, "" | "*") { Vec::new() } else { names::dns_subdomain(group) };
        if !wrong.is_empty() {
            errors.invalid(&resources_path.child("group"), group, wrong.join(","));
        }
        let has_names = !resource.items(&["resourceNames"]).is_empty();
        if has_names && resource.items(&["resources"]).is_empty() {
            let given = resource.get("resourceNames").cloned().unwrap_or_default();
            let why = "using resourceNames requires at least one resource";
            errors.invalid(&resources_path.child("resourceNames"), given, why);
        }
    }
    check_stages(rule.items(&["omitStages"]), &path.child("omitStages"), errors);
    if !urls.is_empty() && (!rule.items(&["resources"]).is_empty() || !rule.items(&["namespaces"]).is_empty()) {
        let why = "rules cannot apply to both regular resources and non-resource URLs";
        errors.invalid(&urls_path, Value::from(urls.to_vec()), why);
    }
}

fn check_stages(stages: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, stage) in stages.iter().enumerate() {
        let name = stage.as_str().unwrap_or_default();
        if !STAGES.contains(&name) {
            errors.invalid(&path.index(index), name, format!("allowed stages are {}", STAGES.join(",")));
        }
    }
}

fn texts(value: &Value, field: &str) -> Vec<String> {
    value.items(&[field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Rule {
    /// Reads a rule that was checked.
    fn read(rule: &Value) -> Rule {
        let resources = rule.items(&["resources"]).iter().map(|one| Resources {
            group: one.text(&["group"]).to_owned(),
            resources: texts(one, "resources"),
            names: texts(one, "resourceNames"),
        });
        Rule {
            level: Level::parse(rule.text(&["level"])).unwrap_or(Level::RequestResponse),
            users: texts(rule, "users"),
            groups: texts(rule, "userGroups"),
            verbs: texts(rule, "verbs"),
            namespaces: texts(rule, "namespaces"),
            resources: resources.collect(),
            paths: texts(rule, "nonResourceURLs"),
            omitted: texts(rule, "omitStages"),
            omits_managed: rule.flag(&["omitManagedFields"]),
        }
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
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
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
    }

    /// The messages of Kubernetes v1.36.
    #[test]
    fn policies_are_checked() {
        const HEAD: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";
        for (text, refusal) in [
            (format!("{HEAD}rules: [{{level: None}}]"), ""),
            (format!("{HEAD}rules: []"), "loaded illegal policy with 0 rules"),
            (
                "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]".to_owned(),
                "unknown group version field audit.k8s.io/v1beta1, Kind=Policy in policy",
            ),
            (format!("{HEAD}rules: [{{}}]"), "rules[0].level: Required value"),
            (
                format!("{HEAD}rules: [{{level: Loud}}]"),
                "rules[0].level: Unsupported value: \"Loud\": supported values: \"None\", \"Metadata\", \"Request\", \
                 \"RequestResponse\"",
            ),
            (
                format!("{HEAD}omitStages: [Never]\nrules: [{{level: None}}]"),
                "omitStages[0]: Invalid value: \"Never\": allowed stages are \
                 RequestReceived,ResponseStarted,ResponseComplete,Panic",
            ),
            (
                format!("{HEAD}rules: [{{level: None, nonResourceURLs: [healthz]}}]"),
                "rules[0].nonResourceURLs[0]: Invalid value: \"healthz\": non-resource URL rules must begin with a '/' \
                 character",
            ),
            (
                format!("{HEAD}rules: [{{level: None, nonResourceURLs: ['/a*b']}}]"),
                "rules[0].nonResourceURLs[0]: Invalid value: \"/a*b\": non-resource URL wildcards '*' must be the final \
                 character of the rule",
            ),
            (
                format!("{HEAD}rules: [{{level: None, resources: [{{group: '', resourceNames: [a]}}]}}]"),
                "rules[0].resources.resourceNames: Invalid value: [\"a\"]: using resourceNames requires at least one \
                 resource",
            ),
            (
                format!("{HEAD}rules: [{{level: None, nonResourceURLs: [/a], namespaces: [n]}}]"),
                "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: rules cannot apply to both regular resources and \
                 non-resource URLs",
            ),
        ] {
            let found = Policy::parse(&text).err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(found, refusal, "{text}");
        }
    }
}
