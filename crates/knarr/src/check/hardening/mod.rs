//! `knarr check --hardening`: the recommendations of the CIS Kubernetes Benchmark that apply to Kubernetes 1.36, in our own words
//! and for this program, with their state on this host.
//!
//! `controls` is the table; each control is a pure function of [`Facts`]. `facts` collects them from files, the running process and,
//! if it is reachable, the cluster. Controls that do not hold by default are named in docs/hardening.md with the reason.

mod cluster;
mod controls;
mod evaluate;
mod facts;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use cluster::ClusterFacts;
pub use controls::CONTROLS;
pub use facts::collect;
pub use versions::Version;

/// One recommendation.
pub struct Control {
    /// Stable, for `--accept` and docs/hardening.md.
    pub id: &'static str,
    /// The section of the benchmark.
    pub section: &'static str,
    pub title: &'static str,
    /// What to change if it does not hold.
    pub remedy: &'static str,
    /// Which hosts it is for.
    pub scope: Scope,
    evaluate: fn(&Facts) -> Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Hosts with a control plane.
    Server,
    /// Hosts with a node.
    Node,
    /// Every host.
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Pass,
    Fail,
    /// An administrator has to evaluate it.
    Manual,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Pass => "pass",
            State::Fail => "FAIL",
            State::Manual => "manual",
        }
    }
}

/// The state of a control, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub state: State,
    pub found: String,
}

fn pass(found: impl Into<String>) -> Outcome {
    Outcome { state: State::Pass, found: found.into() }
}

fn fail(found: impl Into<String>) -> Outcome {
    Outcome { state: State::Fail, found: found.into() }
}

fn manual(found: impl Into<String>) -> Outcome {
    Outcome { state: State::Manual, found: found.into() }
}

/// Owner and permissions of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub is_directory: bool,
}

/// What is known about this host.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub data: PathBuf,
    pub is_server: bool,
    pub is_node: bool,
    /// Every existing file of interest.
    pub files: BTreeMap<PathBuf, FileFacts>,
    /// Values of flags that are set or have defaults: of the running process, otherwise of the configuration file.
    pub settings: BTreeMap<String, Vec<String>>,
    /// Providers of the first rule for Secrets in the encryption configuration.
    pub encryption: Vec<String>,
    /// Levels in the audit policy.
    pub audit_levels: BTreeSet<String>,
    /// Ports of TCP on which processes of this host listen, and whether other hosts reach them.
    pub listening: BTreeMap<u16, bool>,
    pub containerd: Option<Version>,
    pub runc: Option<Version>,
    pub sysctls: BTreeMap<&'static str, String>,
    /// Bytes of memory that a crash of the running process writes to disk; none if it is not running.
    pub core_limit: Option<String>,
    /// Groups of the client certificates in the directory of certificates, by file.
    pub certificate_groups: BTreeMap<PathBuf, Vec<String>>,
    pub cluster: Option<ClusterFacts>,
}

impl Facts {
    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name)?.first().map(String::as_str).filter(|value| !value.is_empty())
    }

    fn is_set(&self, name: &str) -> bool {
        self.setting(name).is_some_and(|value| value != "false")
    }

    /// Files whose path satisfies a condition.
    fn files_where(&self, is_meant: impl Fn(&Path) -> bool) -> Vec<(&Path, &FileFacts)> {
        self.files.iter().map(|(path, facts)| (path.as_path(), facts)).filter(|(path, _)| is_meant(path)).collect()
    }
}

/// A control with its outcome.
pub struct Evaluated {
    pub control: &'static Control,
    pub outcome: Outcome,
}

/// Evaluates all controls that are for this host.
pub fn evaluate(facts: &Facts) -> Vec<Evaluated> {
    let applies = |control: &Control| match control.scope {
        Scope::Server => facts.is_server,
        Scope::Node => facts.is_node,
        Scope::Host => true,
    };
    let controls = CONTROLS.iter().filter(|control| applies(control));
    controls.map(|control| Evaluated { control, outcome: (control.evaluate)(facts) }).collect()
}

/// The identifiers of controls that fail and are not accepted.
pub fn failed<'a>(evaluated: &'a [Evaluated], accepted: &[String]) -> Vec<&'a str> {
    let failed = evaluated.iter().filter(|one| one.outcome.state == State::Fail).map(|one| one.control.id);
    failed.filter(|id| !accepted.iter().any(|accepted| accepted == id)).collect()
}

pub fn to_json(evaluated: &[Evaluated]) -> Value {
    let row = |one: &Evaluated| {
        json!({
            "id": one.control.id, "section": one.control.section, "title": one.control.title,
            "state": one.outcome.state.name().to_lowercase(), "found": one.outcome.found,
            "remedy": if one.outcome.state == State::Pass { "" } else { one.control.remedy },
        })
    };
    Value::Array(evaluated.iter().map(row).collect())
}

#[cfg(test)]
mod tests;
