//! AuthorizationConfiguration: which authorizers run, in which order; also as the `--authorization-*` flags say.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use knarr_api::{go_duration, names};
use serde_json::Value;

use super::abac::AbacError;
use super::match_conditions::MatchConditions;
use crate::configuration_file::{FileError, Kind, Shape};
use crate::outbound::{ConfiguredWebhook, KubeconfigError};

const KIND: Kind = Kind {
    group: "apiserver.config.k8s.io",
    versions: &["v1", "v1beta1", "v1alpha1"],
    kind: "AuthorizationConfiguration",
    fields: &[(
        "authorizers",
        Shape::List(&Shape::Object(&[
            ("type", Shape::Text),
            ("name", Shape::Text),
            (
                "webhook",
                Shape::Object(&[
                    ("authorizedTTL", Shape::Text),
                    ("cacheAuthorizedRequests", Shape::Flag),
                    ("unauthorizedTTL", Shape::Text),
                    ("cacheUnauthorizedRequests", Shape::Flag),
                    ("timeout", Shape::Text),
                    ("subjectAccessReviewVersion", Shape::Text),
                    ("matchConditionSubjectAccessReviewVersion", Shape::Text),
                    ("failurePolicy", Shape::Text),
                    ("connectionInfo", Shape::Object(&[("type", Shape::Text), ("kubeConfigFile", Shape::Text)])),
                    ("matchConditions", Shape::List(&Shape::Object(&[("expression", Shape::Text)]))),
                ]),
            ),
        ])),
    )],
};

const KNOWN: [&str; 6] = ["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];
const DEFAULT_AUTHORIZED_TTL: Duration = Duration::from_secs(300);
const DEFAULT_UNAUTHORIZED_TTL: Duration = Duration::from_secs(30);
const FLAGS_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Abac(#[from] AbacError),
    #[error(transparent)]
    Webhook(#[from] KubeconfigError),
}

/// An authorizer of the chain.
#[derive(Debug)]
pub enum Authority {
    Node,
    Rbac,
    AlwaysAllow,
    AlwaysDeny,
    Abac(PathBuf),
    Webhook(Webhook),
}

#[derive(Debug)]
pub struct Webhook {
    pub name: String,
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    pub denies_on_failure: bool,
    timeout: Duration,
    kubeconfig: PathBuf,
    conditions: Vec<Value>,
}

impl Webhook {
    pub fn connect(&self) -> Result<ConfiguredWebhook, KubeconfigError> {
        ConfiguredWebhook::read(&self.kubeconfig, self.timeout)
    }

    /// They were found valid when the configuration was read.
    pub fn conditions(&self) -> MatchConditions {
        MatchConditions::compile(&self.conditions, &Path::default(), &mut Errors::new())
    }
}

/// A valid configuration.
#[derive(Debug)]
pub struct Configuration(Vec<Authority>);

impl Default for Configuration {
    fn default() -> Self {
        Configuration(vec![Authority::Node, Authority::Rbac])
    }
}

/// The `--authorization-*` flags besides the one that names a configuration file.
#[derive(Clone, Debug, Default)]
pub struct AuthorizationFlags {
    pub modes: Vec<String>,
    pub policy_file: Option<PathBuf>,
    pub webhook_config_file: Option<PathBuf>,
    pub webhook_version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
}

impl Configuration {
    pub fn authorizers(&self) -> &[Authority] {
        &self.0
    }

    /// Reads a configuration file. The policies of ABAC are in a file that only a flag names.
    pub fn parse(text: &str, policy_file: Option<&std::path::Path>) -> Result<Self, ConfigurationError> {
        let document = KIND.decode(text)?;
        let mut errors = Errors::new();
        let authorizers = document.items(&["authorizers"]);
        let root = Path::root("authorizers");
        if authorizers.is_empty() {
            errors.required(&root, "at least one authorization mode must be defined");
        }
        let (mut types, mut seen_names) = (HashSet::new(), HashSet::new());
        let mut found = Vec::new();
        for (index, authorizer) in authorizers.iter().enumerate() {
            let path = root.index(index);
            let kind = authorizer.text(&["type"]);
            if kind.is_empty() {
                errors.required(&path.child("type"), "");
                continue;
            }
            if !KNOWN.contains(&kind) {
                errors.not_supported(&path.child("type"), kind, &KNOWN);
                continue;
            }
            if !types.insert(kind) && kind != "Webhook" {
                errors.duplicate(&path.child("type"), kind);
                continue;
            }
            check_name(authorizer.text(&["name"]), &path.child("name"), &mut seen_names, &mut errors);
            let webhook = authorizer.at(&["webhook"]);
            match kind {
                "Webhook" if webhook.is_null() => errors.required(&path.child("webhook"), "required when type=Webhook"),
                "Webhook" => {
                    let webhook = read_webhook(authorizer.text(&["name"]), webhook, &path, &mut errors);
                    found.push(Authority::Webhook(webhook));
                    continue;
                }
                "ABAC" if policy_file.is_none() => {
                    errors.forbidden(&path.child("type"), "ABAC needs --authorization-policy-file");
                }
                _ if !webhook.is_null() => {
                    let why = "may only be specified when type=Webhook";
                    errors.invalid(&path.child("webhook"), "non-null", why);
                }
                _ => {}
            }
            match (kind, policy_file) {
                ("ABAC", Some(path)) => found.push(Authority::Abac(path.to_owned())),
                _ => found.extend(simple(kind)),
            }
        }
        if errors.is_empty() { Ok(Configuration(found)) } else { Err(invalid(&errors)) }
    }

    /// The chain that the flags describe; without any, the node authorizer and RBAC.
    pub fn of_flags(flags: &AuthorizationFlags) -> Result<Self, ConfigurationError> {
        let refused = |text: String| Err(ConfigurationError::Invalid(text));
        let has = |mode: &str| flags.modes.iter().any(|own| own == mode);
        if flags.policy_file.is_some() && !has("ABAC") {
            return refused("cannot specify --authorization-policy-file without mode ABAC".to_owned());
        }
        if flags.webhook_config_file.is_some() && !has("Webhook") {
            return refused("cannot specify --authorization-webhook-config-file without mode Webhook".to_owned());
        }
        if flags.modes.is_empty() {
            return Ok(Configuration::default());
        }
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for mode in &flags.modes {
            if !KNOWN.contains(&mode.as_str()) {
                return refused(format!("authorization-mode {mode:?} is not a valid mode"));
            }
            if !seen.insert(mode) {
                let all: Vec<String> = flags.modes.iter().map(|mode| format!("{mode:?}")).collect();
                let all = all.join(" ");
                return refused(format!("authorization-mode [{all}] has mode specified more than once"));
            }
            found.push(match (mode.as_str(), &flags.policy_file, &flags.webhook_config_file) {
                ("ABAC", Some(path), _) => Authority::Abac(path.clone()),
                ("ABAC", None, _) => {
                    return refused("authorization-mode ABAC's authorization policy file not passed".to_owned());
                }
                ("Webhook", _, Some(path)) => Authority::Webhook(webhook_of_flags(flags, path)),
                ("Webhook", _, None) => {
                    return refused("authorization-mode Webhook's authorization config file not passed".to_owned());
                }
                (mode, _, _) => match simple(mode) {
                    Some(authority) => authority,
                    None => return refused(format!("authorization-mode {mode:?} is not a valid mode")),
                },
            });
        }
        Ok(Configuration(found))
    }
}

fn webhook_of_flags(flags: &AuthorizationFlags, path: &std::path::Path) -> Webhook {
    Webhook {
        name: "default".to_owned(),
        version: flags.webhook_version.clone(),
        authorized_ttl: flags.authorized_ttl,
        unauthorized_ttl: flags.unauthorized_ttl,
        denies_on_failure: false,
        timeout: FLAGS_TIMEOUT,
        kubeconfig: path.to_owned(),
        conditions: Vec::new(),
    }
}

fn simple(kind: &str) -> Option<Authority> {
    Some(match kind {
        "Node" => Authority::Node,
        "RBAC" => Authority::Rbac,
        "AlwaysAllow" => Authority::AlwaysAllow,
        "AlwaysDeny" => Authority::AlwaysDeny,
        _ => return None,
    })
}

fn invalid(errors: &Errors) -> ConfigurationError {
    let texts: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    ConfigurationError::Invalid(match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    })
}

fn check_name<'a>(name: &'a str, path: &Path<'_>, seen: &mut HashSet<&'a str>, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(path, "");
    } else if !seen.insert(name) {
        errors.duplicate(path, name);
    } else {
        let problems = names::dns_subdomain(name);
        if !problems.is_empty() {
            errors.invalid(path, name, format!("authorizer name is invalid: {}", problems.join(", ")));
        }
    }
}

/// Errors are reported at the authorizer, as Kubernetes does.
fn read_webhook(name: &str, webhook: &Value, path: &Path<'_>, errors: &mut Errors) -> Webhook {
    let mut duration = |field: &'static str, default: Option<Duration>, limit: Option<Duration>| {
        let at = path.child(field);
        let given = webhook.text(&[field]);
        if given.is_empty() {
            return default.unwrap_or_else(|| {
                errors.required(&at, "");
                Duration::ZERO
            });
        }
        match go_duration::parse(given) {
            Err(error) => errors.invalid(&at, given, error),
            Ok(0) => errors.required(&at, ""),
            Ok(nanoseconds) => {
                let duration = u64::try_from(nanoseconds).map(Duration::from_nanos).ok();
                match (duration, limit) {
                    (Some(duration), Some(limit)) if duration <= limit => return duration,
                    (Some(duration), None) => return duration,
                    (_, Some(_)) => {
                        errors.invalid(&at, go_duration::format(nanoseconds), "must be > 0s and <= 30s");
                    }
                    (None, None) => errors.invalid(&at, go_duration::format(nanoseconds), "must be > 0s"),
                }
            }
        }
        Duration::ZERO
    };
    let timeout = duration("timeout", None, Some(Duration::from_secs(30)));
    let authorized = duration("authorizedTTL", Some(DEFAULT_AUTHORIZED_TTL), None);
    let unauthorized = duration("unauthorizedTTL", Some(DEFAULT_UNAUTHORIZED_TTL), None);
    let enumerated = |field: &'static str, allowed: &[&str], errors: &mut Errors| match webhook.text(&[field]) {
        "" => errors.required(&path.child(field), ""),
        given if allowed.contains(&given) => {}
        given => errors.not_supported(&path.child(field), given, allowed),
    };
    enumerated("subjectAccessReviewVersion", &["v1", "v1beta1"], errors);
    let conditions = webhook.items(&["matchConditions"]);
    match webhook.text(&["matchConditionSubjectAccessReviewVersion"]) {
        "" if conditions.is_empty() => {}
        "" => errors.required(
            &path.child("matchConditionSubjectAccessReviewVersion"),
            "required if match conditions are specified",
        ),
        _ => enumerated("matchConditionSubjectAccessReviewVersion", &["v1"], errors),
    }
    enumerated("failurePolicy", &["NoOpinion", "Deny"], errors);
    let kubeconfig = read_connection(webhook.at(&["connectionInfo"]), &path.child("connectionInfo"), errors);
    MatchConditions::compile(conditions, path, errors);
    let cached = |field: &str, ttl: Duration| if webhook.flag(&[field]) == Some(false) { Duration::ZERO } else { ttl };
    Webhook {
        name: name.to_owned(),
        version: webhook.text(&["subjectAccessReviewVersion"]).to_owned(),
        authorized_ttl: cached("cacheAuthorizedRequests", authorized),
        unauthorized_ttl: cached("cacheUnauthorizedRequests", unauthorized),
        denies_on_failure: webhook.text(&["failurePolicy"]) == "Deny",
        timeout,
        kubeconfig,
        conditions: conditions.to_vec(),
    }
}

fn read_connection(connection: &Value, path: &Path<'_>, errors: &mut Errors) -> PathBuf {
    let file = connection.text(&["kubeConfigFile"]);
    let at = path.child("kubeConfigFile");
    match connection.text(&["type"]) {
        "" => errors.required(&path.child("type"), ""),
        "KubeConfigFile" if file.is_empty() => errors.required(&at, ""),
        "KubeConfigFile" if !std::path::Path::new(file).is_absolute() => {
            errors.invalid(&at, file, "must be an absolute path");
        }
        "KubeConfigFile" => match std::fs::metadata(file) {
            Err(error) => errors.invalid(&at, file, format!("error loading file: {error}")),
            Ok(metadata) if !metadata.is_file() => errors.invalid(&at, file, "must be a regular file"),
            Ok(_) => {}
        },
        // This server would ask itself for the permission to ask itself.
        other => errors.not_supported(&path.child("type"), other, &["KubeConfigFile"]),
    }
    PathBuf::from(file)
}

#[cfg(test)]
mod tests;
