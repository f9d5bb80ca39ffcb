//! AuthenticationConfiguration: issuers of JSON web tokens, and where requests may be anonymous.

mod issuer;
mod mappings;
mod rules;
#[cfg(test)]
mod tests;

pub use issuer::Issuer;

use std::collections::HashSet;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::{Value, json};

use super::mapping::Mapping;
use crate::configuration_file::{FileError, Kind, Shape};

const MAX_ISSUERS: usize = 64;

const PREFIXED: Shape = Shape::Object(&[("claim", Shape::Text), ("prefix", Shape::Text), ("expression", Shape::Text)]);

/// The configuration's kind and fields.
const KIND: Kind = Kind {
    group: "apiserver.config.k8s.io",
    versions: &["v1", "v1beta1", "v1alpha1"],
    kind: "AuthenticationConfiguration",
    fields: &[
        (
            "jwt",
            Shape::List(&Shape::Object(&[
                (
                    "issuer",
                    Shape::Object(&[
                        ("url", Shape::Text),
                        ("discoveryURL", Shape::Text),
                        ("certificateAuthority", Shape::Text),
                        ("audiences", Shape::List(&Shape::Text)),
                        ("audienceMatchPolicy", Shape::Text),
                        ("egressSelectorType", Shape::Text),
                    ]),
                ),
                (
                    "claimValidationRules",
                    Shape::List(&Shape::Object(&[
                        ("claim", Shape::Text),
                        ("requiredValue", Shape::Text),
                        ("expression", Shape::Text),
                        ("message", Shape::Text),
                    ])),
                ),
                (
                    "claimMappings",
                    Shape::Object(&[
                        ("username", PREFIXED),
                        ("groups", PREFIXED),
                        ("uid", Shape::Object(&[("claim", Shape::Text), ("expression", Shape::Text)])),
                        (
                            "extra",
                            Shape::List(&Shape::Object(&[("key", Shape::Text), ("valueExpression", Shape::Text)])),
                        ),
                    ]),
                ),
                (
                    "userValidationRules",
                    Shape::List(&Shape::Object(&[("expression", Shape::Text), ("message", Shape::Text)])),
                ),
            ])),
        ),
        (
            "anonymous",
            Shape::Object(&[
                ("enabled", Shape::Flag),
                ("conditions", Shape::List(&Shape::Object(&[("path", Shape::Text)]))),
            ]),
        ),
    ],
};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("invalid authentication configuration: {0}")]
    Invalid(String),
    #[error("oidc: {0}")]
    Client(String),
}

impl ConfigurationError {
    pub fn of(errors: &Errors) -> Self {
        let texts: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        ConfigurationError::Invalid(match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        })
    }
}

/// Which requests without credentials are anonymous; the others are unauthorized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    Never,
    Everywhere,
    /// At these paths only.
    At(Vec<String>),
}

impl Anonymous {
    pub fn allows(&self, path: &str) -> bool {
        match self {
            Anonymous::Never => false,
            Anonymous::Everywhere => true,
            Anonymous::At(paths) => paths.iter().any(|own| own == path),
        }
    }
}

/// A valid configuration.
#[derive(Debug)]
pub struct Configuration {
    issuers: Vec<Value>,
    /// Unset if the flags decide.
    pub anonymous: Option<Anonymous>,
    /// Issuers that cannot be configured: those of this server's own tokens.
    reserved: Vec<String>,
}

impl Configuration {
    pub fn parse(text: &str, reserved: &[String]) -> Result<Self, ConfigurationError> {
        Configuration::new(&KIND.decode(text)?, reserved)
    }

    /// A configuration with one issuer.
    pub fn of_issuer(issuer: Value, reserved: &[String]) -> Result<Self, ConfigurationError> {
        Configuration::new(&json!({"jwt": [issuer]}), reserved)
    }

    fn new(document: &Value, reserved: &[String]) -> Result<Self, ConfigurationError> {
        let mut errors = Errors::new();
        let issuers = document.items(&["jwt"]);
        let root = Path::root("jwt");
        if issuers.len() > MAX_ISSUERS {
            errors.too_many(&root, issuers.len(), MAX_ISSUERS);
            return Err(ConfigurationError::of(&errors));
        }
        let (mut urls, mut discovery_urls) = (HashSet::new(), HashSet::new());
        for (index, issuer) in issuers.iter().enumerate() {
            compile(issuer, index, reserved, &mut errors);
            let path = root.index(index);
            let path = path.child("issuer");
            let (url, discovery) = (issuer.text(&["issuer", "url"]), issuer.text(&["issuer", "discoveryURL"]));
            if !urls.insert(url) {
                errors.duplicate(&path.child("url"), url);
            }
            if !discovery.is_empty() && !discovery_urls.insert(discovery) {
                errors.duplicate(&path.child("discoveryURL"), discovery);
            }
        }
        let anonymous = read_anonymous(document.at(&["anonymous"]), &mut errors);
        if !errors.is_empty() {
            return Err(ConfigurationError::of(&errors));
        }
        Ok(Configuration { issuers: issuers.to_vec(), anonymous, reserved: reserved.to_vec() })
    }

    pub(super) fn issuers(&self) -> &[Value] {
        &self.issuers
    }

    pub(super) fn reserved(&self) -> &[String] {
        &self.reserved
    }
}

fn read_anonymous(value: &Value, errors: &mut Errors) -> Option<Anonymous> {
    if value.is_null() {
        return None;
    }
    let paths: Vec<String> =
        value.items(&["conditions"]).iter().map(|condition| condition.text(&["path"]).to_owned()).collect();
    let enabled = value.flag(&["enabled"]) == Some(true);
    if !enabled && !paths.is_empty() {
        let shown = json!(paths.iter().map(|path| json!({"Path": path})).collect::<Vec<_>>()).to_string();
        let anonymous = Path::root("anonymous");
        let why = "enabled should be set to true when conditions are defined";
        errors.invalid_verbatim(&anonymous.child("conditions"), shown, why);
    }
    Some(match (enabled, paths.is_empty()) {
        (false, _) => Anonymous::Never,
        (true, true) => Anonymous::Everywhere,
        (true, false) => Anonymous::At(paths),
    })
}

/// Reads the settings of one issuer and reports what is wrong with them.
pub fn compile(
    document: &Value,
    index: usize,
    reserved: &[String],
    errors: &mut Errors,
) -> (Option<Issuer>, Option<Mapping>) {
    let root = Path::root("jwt");
    let path = root.index(index);
    let issuer = issuer::read(document.at(&["issuer"]), &path.child("issuer"), reserved, errors);
    let rules = path.child("claimValidationRules");
    let (required, claim_conditions) =
        rules::read_claim_rules(document.items(&["claimValidationRules"]), &rules, errors);
    let mappings = document.at(&["claimMappings"]);
    let mapped = mappings::read(mappings, &path.child("claimMappings"), &claim_conditions, errors);
    let user_rules = path.child("userValidationRules");
    let user_conditions = rules::read_user_rules(document.items(&["userValidationRules"]), &user_rules, errors);
    let mapping = mapped.map(|(username, groups, uid, extra)| Mapping {
        username,
        groups,
        uid,
        extra,
        required,
        claim_conditions,
        user_conditions,
    });
    (issuer, mapping)
}
