//! The feature gates of this process, and their metric.

use std::sync::OnceLock;

use knarr_component_flags::{Gates, gates};
use knarr_metrics::{Described, Family, Kind};

static GATES: OnceLock<Gates> = OnceLock::new();

/// The pages of every component that a gate switches.
const PAGES: [(&str, &str); 2] = [("ComponentFlagz", "/flagz"), ("ComponentStatusz", "/statusz")];

/// Sets the gates that the command line requests, once.
pub fn set(requested: &Gates) {
    let hidden = PAGES.iter().filter(|(gate, _)| !requested.is_on(gate));
    knarr_zpages::hide(hidden.map(|(_, path)| *path).collect());
    // Set once per process.
    let _ = GATES.set(requested.clone());
}

/// The gates of this process.
pub fn current() -> Gates {
    GATES.get().cloned().unwrap_or_default()
}

/// Adds the gates to the pages of metrics.
pub fn register() {
    knarr_metrics::register(&[&FeatureGates]);
}

struct FeatureGates;

impl Family for FeatureGates {
    fn name(&self) -> &'static str {
        "kubernetes_feature_enabled"
    }

    fn write(&self, out: &mut String) {
        let set = current();
        let all = gates().iter().filter(|gate| !matches!(gate.name, "AllAlpha" | "AllBeta"));
        // A feature that is generally available has no stage.
        let stage = |stage: &'static str| if stage == "GA" { "" } else { stage };
        knarr_metrics::write_features(all.map(|gate| (gate.name, stage(gate.stage), set.is_on(gate.name))), out);
    }

    fn described(&self) -> Vec<Described> {
        vec![Described { name: self.name(), kind: Kind::Gauge, labels: &["name", "stage"], bounds: &[] }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_written_with_their_stage() {
        let mut page = String::new();
        FeatureGates.write(&mut page);
        assert!(page.contains("kubernetes_feature_enabled{name=\"APIServerTracing\",stage=\"\"} 1\n"), "{page}");
        assert!(page.contains("{name=\"APIServingWithRoutine\",stage=\"ALPHA\"} 0\n"), "{page}");
    }
}
