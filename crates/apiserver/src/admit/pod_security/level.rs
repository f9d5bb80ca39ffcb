//! The Pod Security levels and versions that a namespace's labels set.

use std::fmt;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    pub fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }
}

/// A level, and the minor version of Kubernetes whose checks apply; the newest if `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Option<u32>,
}

impl LevelVersion {
    pub fn is_at_least(&self, minor: u32) -> bool {
        self.version.is_none_or(|version| version >= minor)
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Some(minor) => write!(f, "{level}:v1.{minor}"),
            None => write!(f, "{level}:latest"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

pub const PREFIX: &str = "pod-security.kubernetes.io/";

impl Policy {
    /// The policy of the labels, and errors in them. An invalid level enforces the strictest one, without audit or warnings.
    pub fn of(labels: &Value, defaults: Policy) -> (Self, Errors) {
        let mut errors = Errors::new();
        let mut policy = defaults;
        let enforced = read(labels, "enforce", Level::Restricted, &mut policy.enforce, &mut errors);
        read(labels, "audit", Level::Privileged, &mut policy.audit, &mut errors);
        let warns = labels.has(&[&format!("{PREFIX}warn")]);
        read(labels, "warn", Level::Privileged, &mut policy.warn, &mut errors);
        if !warns && enforced && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !labels.has(&[&format!("{PREFIX}warn-version")]) {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }

    /// The whole policy as messages show it.
    pub fn full(&self) -> String {
        let Policy { enforce, audit, warn } = self;
        if enforce == audit && enforce == warn {
            return enforce.to_string();
        }
        format!(
            "enforce={enforce:?}, audit={audit:?}, warn={warn:?}",
            enforce = enforce.to_string(),
            audit = audit.to_string(),
            warn = warn.to_string()
        )
    }
}

impl Default for Policy {
    fn default() -> Self {
        let unset = LevelVersion { level: Level::Privileged, version: None };
        Policy { enforce: unset, audit: unset, warn: unset }
    }
}

/// Whether a valid level is set.
fn read(labels: &Value, mode: &str, otherwise: Level, into: &mut LevelVersion, errors: &mut Errors) -> bool {
    let (level_key, version_key) = (format!("{PREFIX}{mode}"), format!("{PREFIX}{mode}-version"));
    let root = Path::root("metadata");
    let path = root.child("labels");
    let mut given = false;
    if labels.has(&[&level_key]) {
        let text = labels.text(&[&level_key]);
        match Level::parse(text) {
            Some(level) => into.level = level,
            None => {
                into.level = otherwise;
                errors.invalid(&path.key(&level_key), text, "must be one of privileged, baseline, restricted");
            }
        }
        given = Level::parse(text).is_some();
    }
    if labels.has(&[&version_key]) {
        let text = labels.text(&[&version_key]);
        match parse_version(text) {
            Some(version) => into.version = version,
            None => errors.invalid(&path.key(&version_key), text, "must be \"latest\" or \"v1.x\""),
        }
    }
    given
}

/// `latest` or `v1.N`.
pub fn parse_version(text: &str) -> Option<Option<u32>> {
    if text == "latest" {
        return Some(None);
    }
    let digits = text.strip_prefix("v1.")?;
    let plain = digits == "0" || (!digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()));
    if plain { digits.parse().ok().map(Some) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_say_level_and_version() {
        let (policy, errors) = Policy::of(
            &json!({"pod-security.kubernetes.io/enforce": "baseline",
            "pod-security.kubernetes.io/enforce-version": "v1.24"}),
            Policy::default(),
        );
        assert!(errors.is_empty());
        assert_eq!(
            (policy.enforce.to_string(), policy.warn.to_string()),
            ("baseline:v1.24".into(), "baseline:v1.24".into())
        );
        let (policy, errors) = Policy::of(
            &json!({"pod-security.kubernetes.io/enforce": "no",
            "pod-security.kubernetes.io/warn-version": "1.2"}),
            Policy::default(),
        );
        assert_eq!((policy.enforce.level, errors.0.len()), (Level::Restricted, 2));
    }
}
