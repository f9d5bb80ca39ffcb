//! Feature gates: which exist, which may be changed, and what was requested.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::go;
use crate::parse::Given;

/// A feature gate of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub name: &'static str,
    pub stage: &'static str,
    pub default: bool,
    pub is_locked: bool,
    /// The components that ask for it, separated by commas.
    pub users: &'static str,
}

/// The gates of a process: the requested ones, and the defaults of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    set: BTreeMap<&'static str, bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    #[error("cannot set feature gate {0} to {1}, feature is locked to {2}")]
    Locked(&'static str, bool, bool),
    #[error("missing bool value for {0}")]
    MissingValue(String),
    #[error("invalid value of {0}={1}, err: {2}")]
    InvalidValue(String, String, String),
    #[error("component not registered: {0}")]
    UnknownComponent(String),
    #[error("set kube feature gates with default empty prefix or kube: prefix consistently, do not mix use")]
    MixedPrefixes,
}

/// All gates, by name.
pub fn gates() -> &'static [Gate] {
    static TABLE: LazyLock<Vec<Gate>> = LazyLock::new(|| include_str!("gates.txt").lines().filter_map(read).collect());
    &TABLE
}

fn read(line: &'static str) -> Option<Gate> {
    let mut columns = line.split('\t');
    Some(Gate {
        name: columns.next()?,
        stage: columns.next()?,
        default: columns.next()? == "on",
        is_locked: columns.next()? == "locked",
        users: columns.next()?,
    })
}

fn find(name: &str) -> Option<&'static Gate> {
    let gates = gates();
    gates.binary_search_by(|gate| gate.name.cmp(name)).ok().map(|at| &gates[at])
}

impl Gates {
    /// The gates that `--feature-gates` requests, in either of its forms.
    pub fn of(given: &Given) -> Result<Self, GateError> {
        let is_prefixed = crate::flag(given.component(), "feature-gates")
            .is_some_and(|flag| flag.type_name == "colonSeparatedMultimapStringString");
        Self::parse(&given.values("feature-gates"), is_prefixed)
    }

    /// The gates of entries such as `Name=true`; with a prefix, `kube:Name=true` is the same.
    pub fn parse(entries: &[String], is_prefixed: bool) -> Result<Self, GateError> {
        let mut pairs: Vec<(&str, Option<&str>)> = Vec::new();
        let mut prefixes = (false, false);
        for entry in entries {
            let (prefix, pair) =
                if is_prefixed { entry.split_once(':').unwrap_or(("", entry)) } else { ("", entry.as_str()) };
            match prefix {
                "" => prefixes.0 = true,
                "kube" => prefixes.1 = true,
                other => return Err(GateError::UnknownComponent(other.to_owned())),
            }
            let (name, value) = pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
            pairs.push((name.trim(), value.map(str::trim)));
        }
        if prefixes == (true, true) {
            return Err(GateError::MixedPrefixes);
        }
        let mut requested = BTreeMap::new();
        for (name, value) in pairs {
            let value = value.ok_or_else(|| GateError::MissingValue(name.to_owned()))?;
            let on = go::parse_bool(value)
                .map_err(|error| GateError::InvalidValue(name.to_owned(), value.to_owned(), error))?;
            requested.insert(name.to_owned(), on);
        }
        Self::from_map(&requested)
    }

    /// The gates of a configuration file.
    pub fn from_map(requested: &BTreeMap<String, bool>) -> Result<Self, GateError> {
        let mut set = BTreeMap::new();
        for (name, on) in requested {
            let gate = find(name).ok_or_else(|| GateError::Unknown(name.clone()))?;
            if gate.is_locked && gate.default != *on {
                return Err(GateError::Locked(gate.name, *on, gate.default));
            }
            set.insert(gate.name, *on);
        }
        for (all, stage) in [("AllAlpha", "ALPHA"), ("AllBeta", "BETA")] {
            if let Some(on) = set.get(all).copied() {
                for gate in gates().iter().filter(|gate| gate.stage == stage && !gate.is_locked) {
                    // What is named itself takes precedence.
                    set.entry(gate.name).or_insert(on);
                }
            }
        }
        Ok(Gates { set })
    }

    /// Whether a feature is enabled.
    pub fn is_on(&self, name: &str) -> bool {
        self.set.get(name).copied().unwrap_or_else(|| find(name).is_some_and(|gate| gate.default))
    }

    /// The gates whose value differs from the default.
    pub fn changed(&self) -> impl Iterator<Item = (&'static Gate, bool)> {
        gates().iter().filter_map(|gate| {
            let on = self.set.get(gate.name).copied()?;
            (on != gate.default).then_some((gate, on))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommandLine, Component, parse};

    fn of(component: Component, value: &str) -> Result<Gates, GateError> {
        match parse(component, &[format!("--feature-gates={value}")]) {
            Ok(CommandLine::Run(given)) => Gates::of(&given),
            other => panic!("{other:?}"),
        }
    }

    /// The messages are those of the programs of v1.36.
    #[test]
    fn gates_are_checked_as_kubernetes_checks_them() {
        for (component, value, message) in [
            (Component::ApiServer, "Foo=true", "unrecognized feature gate: Foo"),
            (Component::ApiServer, "Foo", "missing bool value for Foo"),
            (
                Component::ApiServer,
                "APIServerTracing=false",
                "cannot set feature gate APIServerTracing to false, feature is locked to true",
            ),
            (
                Component::ApiServer,
                "APIResponseCompression=maybe",
                "invalid value of APIResponseCompression=maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (Component::Scheduler, "wardle:A=true", "component not registered: wardle"),
            (Component::Kubelet, "Foo=true", "unrecognized feature gate: Foo"),
        ] {
            assert_eq!(of(component, value).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn gates_are_sorted_by_name() {
        assert!(gates().is_sorted_by(|first, second| first.name < second.name));
    }

    #[test]
    fn gates_have_their_default_until_they_are_set() {
        let gates = of(Component::ApiServer, "kube:APIResponseCompression=false,kube:APIServerTracing=true").unwrap();
        assert!(!gates.is_on("APIResponseCompression") && gates.is_on("APIServerTracing"));
        assert!(gates.is_on("APIServerIdentity") && !gates.is_on("NoSuchGate"));
        let changed: Vec<_> = gates.changed().map(|(gate, on)| (gate.name, on)).collect();
        assert_eq!(changed, [("APIResponseCompression", false)]);
        let beta = of(Component::Kubelet, "AllBeta=false,APIServerIdentity=true").unwrap();
        assert!(!beta.is_on("APIResponseCompression") && beta.is_on("APIServerIdentity"));
        assert!(beta.is_on("APIServerTracing"));
    }
}
