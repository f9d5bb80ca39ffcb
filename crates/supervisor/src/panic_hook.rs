//! Logs panics with their component, and counts them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::panics::panic_message;
use crate::run::current_run;

/// Panics outside of any component.
static OTHER_PANICS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn other_panics() -> u64 {
    OTHER_PANICS.load(Ordering::Relaxed)
}

/// Logs each panic with its place and its component, instead of the default message on standard error.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let reason = panic_message(info.payload());
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let run = current_run();
        match &run {
            Some(run) => run.component.count_panic(),
            None => drop(OTHER_PANICS.fetch_add(1, Ordering::Relaxed)),
        }
        let component = run.as_ref().map_or("none", |run| run.name());
        tracing::error!(component, place, reason, "a task panicked");
    }));
}
