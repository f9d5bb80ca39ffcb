//! Metrics of components in Prometheus format.

use std::fmt::Write as _;

use crate::panic_hook::other_panics;
use crate::registry::Registry;

/// Appends the metrics of all components.
pub fn write_metrics(registry: &Registry, out: &mut String) {
    let reports = registry.report();
    let head = |out: &mut String, name: &str, help: &str, kind: &str| {
        let _ = writeln!(out, "# HELP {name} [ALPHA] {help}\n# TYPE {name} {kind}");
    };
    let name = "knarr_component_up";
    head(out, name, "Whether each component of this process runs: 0 from a failure until its restart.", "gauge");
    for report in &reports {
        let _ = writeln!(out, "{name}{{component={:?}}} {}", report.name, u8::from(report.failure.is_none()));
    }
    let name = "knarr_component_restarts_total";
    head(out, name, "Restarts of components that panicked or returned.", "counter");
    for report in &reports {
        let _ = writeln!(out, "{name}{{component={:?}}} {}", report.name, report.restarts);
    }
    let name = "knarr_panics_total";
    head(out, name, "Panics, by component; those outside of components have an empty name.", "counter");
    for report in &reports {
        let _ = writeln!(out, "{name}{{component={:?}}} {}", report.name, report.panics);
    }
    let _ = writeln!(out, "{name}{{component=\"\"}} {}", other_panics());
}
