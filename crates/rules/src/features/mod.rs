//! Feature gates as the rules see them: fields of features that are off are dropped from what clients write, unless the stored
//! object has them.
//!
//! Upstream: `dropDisabledFields` and its like, which the strategies call from `PrepareForCreate` and `PrepareForUpdate`.

mod path;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use knarr_component_flags::{GatedFields, Gates, gated_fields};
use serde_json::Value;

use path::FieldPath;

/// Where kinds contain the structures that the table of gated fields names.
const CONTAINED: [(&str, &str, &str); 11] = [
    ("PodSpec", "Pod", "spec"),
    ("PodSpec", "PodTemplate", "template.spec"),
    ("PodSpec", "ReplicationController", "spec.template.spec"),
    ("PodSpec", "DaemonSet.apps", "spec.template.spec"),
    ("PodSpec", "Deployment.apps", "spec.template.spec"),
    ("PodSpec", "ReplicaSet.apps", "spec.template.spec"),
    ("PodSpec", "StatefulSet.apps", "spec.template.spec"),
    ("PodSpec", "Job.batch", "spec.template.spec"),
    ("PodSpec", "CronJob.batch", "spec.jobTemplate.spec.template.spec"),
    ("ClaimSpec", "ResourceClaim.resource.k8s.io", "spec"),
    ("ClaimSpec", "ResourceClaimTemplate.resource.k8s.io", "spec.spec"),
];

/// The state of the feature gates, and the fields that are dropped because of it.
#[derive(Clone, Debug)]
pub struct Features {
    gates: Gates,
    /// By kind and group.
    disabled: BTreeMap<(&'static str, &'static str), Vec<Disabled>>,
}

/// Fields that are dropped together.
#[derive(Clone, Debug)]
struct Disabled {
    paths: Vec<FieldPath>,
    unless: Vec<FieldPath>,
}

impl Default for Features {
    fn default() -> Self {
        Features::new(Gates::default())
    }
}

impl Features {
    pub fn new(gates: Gates) -> Self {
        let mut disabled: BTreeMap<_, Vec<Disabled>> = BTreeMap::new();
        for row in gated_fields().iter().filter(|row| !gates.is_on(row.gate)) {
            let contained = CONTAINED.iter().filter(|(structure, ..)| *structure == row.kind);
            let places: Vec<_> = contained.map(|(_, kind, path)| (*kind, Some(*path))).collect();
            let places = if places.is_empty() { vec![(row.kind, None)] } else { places };
            for (kind, parents) in places {
                let name = kind.split_once('.').unwrap_or((kind, ""));
                disabled.entry(name).or_default().push(Disabled::of(row, parents));
            }
        }
        Features { gates, disabled }
    }

    /// The gates of a process without flags.
    pub fn defaults() -> &'static Features {
        static DEFAULTS: LazyLock<Features> = LazyLock::new(Features::default);
        &DEFAULTS
    }

    /// Whether a feature is enabled.
    pub fn is_on(&self, gate: &str) -> bool {
        self.gates.is_on(gate)
    }

    /// Drops the fields of disabled features from an object that is written. `old` is the stored object of an update.
    pub fn drop_disabled(&self, group: &str, kind: &str, object: &mut Value, old: Option<&Value>) {
        let found = self.disabled.get(&(kind, group));
        for disabled in found.into_iter().flatten() {
            disabled.drop_from(object, old);
        }
    }
}

impl Disabled {
    fn of(row: &GatedFields, parents: Option<&'static str>) -> Self {
        let parse = |text: &&'static str| {
            let path = FieldPath::parse(text);
            parents.map_or(path.clone(), |parents| path.below(parents))
        };
        Disabled { paths: row.paths.iter().map(parse).collect(), unless: row.unless.iter().map(parse).collect() }
    }

    fn drop_from(&self, object: &mut Value, old: Option<&Value>) {
        let is_in_use = old.is_some_and(|old| {
            let fields = if self.unless.is_empty() { &self.paths } else { &self.unless };
            fields.iter().any(|path| path.is_set(old))
        });
        if !is_in_use {
            self.paths.iter().for_each(|path| path.remove(object));
        }
    }
}

#[cfg(test)]
mod tests;
