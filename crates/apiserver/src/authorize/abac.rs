//! Attribute-based access control: a file of policies, one JSON object a line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_api::value::Read;
use serde_json::Value;

use super::{Authorizer, Decision};
use crate::request::{GROUP_AUTHENTICATED, Target, User};

const GROUP: &str = "abac.authorization.kubernetes.io";
const NO_MATCH: &str = "No policy matched.";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AbacError {
    #[error("open {0}: {1}")]
    File(PathBuf, String),
    #[error("error reading policy file {path}, line {line}: {problem}: {why}")]
    Line { path: PathBuf, line: usize, problem: &'static str, why: String },
}

/// The policies of a file.
#[derive(Debug, Default)]
pub struct Abac(Vec<Policy>);

/// What a user or group may do. `*` stands for everything.
#[derive(Debug, Default, PartialEq, Eq)]
struct Policy {
    user: String,
    group: String,
    is_read_only: bool,
    namespace: String,
    resource: String,
    api_group: String,
    path: String,
}

impl Abac {
    pub fn read(path: &Path) -> Result<Abac, AbacError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| AbacError::File(path.to_owned(), error.to_string()))?;
        Abac::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Abac, AbacError> {
        let mut policies = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line_text = line.trim();
            if line_text.is_empty() || line_text.starts_with('#') {
                continue;
            }
            let failed = |problem, why: String| AbacError::Line { path: path.to_owned(), line: index, problem, why };
            let value: Value =
                serde_json::from_str(line_text).map_err(|error| failed("error decoding policy", error.to_string()))?;
            let version = value.text(&["apiVersion"]);
            policies.push(match (version, value.text(&["kind"])) {
                ("", "") => Policy::unversioned(&value),
                (version, "Policy") if version == format!("{GROUP}/v1beta1") => Policy::versioned(value.at(&["spec"])),
                (version, kind) => {
                    let why = format!("no kind {kind:?} is registered for version {version:?}");
                    return Err(failed("unrecognized object", why));
                }
            });
        }
        Ok(Abac(policies))
    }
}

impl Policy {
    fn versioned(spec: &Value) -> Policy {
        let text = |field: &str| spec.text(&[field]).to_owned();
        let alias = |name: String| if name == "*" { GROUP_AUTHENTICATED.to_owned() } else { name };
        let is_everyone = spec.text(&["user"]) == "*";
        Policy {
            user: if is_everyone { String::new() } else { text("user") },
            group: if is_everyone { GROUP_AUTHENTICATED.to_owned() } else { alias(text("group")) },
            is_read_only: spec.flag(&["readonly"]) == Some(true),
            namespace: text("namespace"),
            resource: text("resource"),
            api_group: text("apiGroup"),
            path: text("nonResourcePath"),
        }
    }

    /// The format before there were versions: absent means everything.
    fn unversioned(line: &Value) -> Policy {
        let text = |field: &str| line.text(&[field]).to_owned();
        let or_all = |field: &str| Some(text(field)).filter(|text| !text.is_empty()).unwrap_or_else(|| "*".to_owned());
        let (user, group) = (text("user"), text("group"));
        let is_everyone = (user.is_empty() && group.is_empty()) || user == "*";
        let group = if is_everyone || group == "*" { GROUP_AUTHENTICATED.to_owned() } else { group };
        // Policies for all resources are also for all paths.
        let is_for_paths = text("namespace").is_empty() && text("resource").is_empty();
        Policy {
            user: if is_everyone { String::new() } else { user },
            group,
            is_read_only: line.flag(&["readonly"]) == Some(true),
            namespace: or_all("namespace"),
            resource: or_all("resource"),
            api_group: "*".to_owned(),
            path: if is_for_paths { "*".to_owned() } else { String::new() },
        }
    }

    fn matches(&self, user: &User, target: &Target) -> bool {
        let is_reading = matches!(target.verb.as_str(), "get" | "list" | "watch");
        self.is_for(user)
            && (is_reading || !self.is_read_only)
            && if target.is_resource() { self.covers_resource(target) } else { self.covers_path(&target.path) }
    }

    fn is_for(&self, user: &User) -> bool {
        let by_user = self.user == "*" || self.user == user.name;
        let by_group = self.group == "*" || user.is_in(&self.group);
        match (self.user.is_empty(), self.group.is_empty()) {
            (true, true) => false,
            (false, true) => by_user,
            (true, false) => by_group,
            (false, false) => by_user && by_group,
        }
    }

    fn covers_resource(&self, target: &Target) -> bool {
        let covers = |own: &str, asked: &str| own == "*" || own == asked;
        covers(&self.namespace, &target.namespace)
            && covers(&self.resource, &target.resource)
            && covers(&self.api_group, &target.group)
    }

    fn covers_path(&self, path: &str) -> bool {
        match self.path.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => self.path == path,
        }
    }
}

impl Authorizer for Abac {
    fn decide(&self, user: &User, target: &Target) -> Decision {
        if self.0.iter().any(|policy| policy.matches(user, target)) {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(NO_MATCH.to_owned())
        }
    }

    fn rules(&self, user: &User, namespace: &str) -> super::UserRules {
        let own = self.0.iter().filter(|policy| policy.is_for(user));
        let verbs = |policy: &Policy| -> Vec<String> {
            let verbs: &[&str] = if policy.is_read_only { &["get", "list", "watch"] } else { &["*"] };
            verbs.iter().map(|verb| (*verb).to_owned()).collect()
        };
        let mut rules = Vec::new();
        for policy in own.filter(|policy| policy.namespace == "*" || policy.namespace == namespace) {
            if !policy.resource.is_empty() && !policy.namespace.is_empty() {
                rules.push(super::Rule {
                    verbs: verbs(policy),
                    groups: vec![policy.api_group.clone()],
                    resources: vec![policy.resource.clone()],
                    ..Default::default()
                });
            }
            if !policy.path.is_empty() {
                let paths = vec![policy.path.clone()];
                rules.push(super::Rule { verbs: verbs(policy), paths, ..Default::default() });
            }
        }
        super::UserRules { roles: vec![Arc::new(rules)], missing_roles: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_allow_what_they_name() {
        let line = |spec: &str| format!("{{\"apiVersion\":\"{GROUP}/v1beta1\",\"kind\":\"Policy\",\"spec\":{spec}}}\n");
        let text = [
            "# comment\n\n".to_owned(),
            line(r#"{"user":"ann","namespace":"n","resource":"pods","apiGroup":"*","readonly":true}"#),
            line(r#"{"group":"ops","namespace":"*","resource":"*","apiGroup":"*"}"#),
            line(r#"{"user":"*","nonResourcePath":"/api*","readonly":true}"#),
            "{\"user\":\"old\",\"resource\":\"services\"}\n".to_owned(),
        ]
        .concat();
        let abac = Abac::parse(&text, Path::new("f")).unwrap();
        let user = |name: &str, groups: &[&str]| User::named(name, groups);
        let resource = |verb: &str, resource: &str, namespace: &str| Target {
            verb: verb.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            ..Target::default()
        };
        let path = |path: &str| Target { verb: "get".into(), path: path.into(), ..Target::default() };
        let authenticated = [GROUP_AUTHENTICATED];
        for (user, target, allowed) in [
            (user("ann", &[]), resource("get", "pods", "n"), true),
            (user("ann", &[]), resource("create", "pods", "n"), false),
            (user("ann", &[]), resource("get", "pods", "m"), false),
            (user("bob", &["ops"]), resource("delete", "nodes", ""), true),
            (user("bob", &["ops"]), path("/metrics"), false),
            (user("eve", &authenticated), path("/apis/apps"), true),
            (user("eve", &[]), path("/apis/apps"), false),
            (user("old", &[]), resource("delete", "services", "x"), true),
            (user("old", &[]), resource("delete", "pods", "x"), false),
        ] {
            let decision = abac.decide(&user, &target);
            assert_eq!(matches!(decision, Decision::Allow(_)), allowed, "{} {target:?}", user.name);
        }
        assert_eq!(abac.decide(&user("x", &[]), &path("/")), Decision::NoOpinion("No policy matched.".into()));
    }

    #[test]
    fn unreadable_lines_are_refused() {
        let refused = |text: &str| Abac::parse(text, Path::new("f")).unwrap_err().to_string();
        assert!(refused("{}\nnonsense").starts_with("error reading policy file f, line 1: error decoding policy:"));
        assert!(refused(r#"{"apiVersion":"x/v1","kind":"Policy"}"#).contains("no kind \"Policy\" is registered"));
    }
}
