//! The supervisor of a process: it owns every named long-lived task.
//!
//! In: components, each a function that returns the future to run. Out: a component that panics or returns is logged with
//! its name and restarted after a backoff; one that cannot be restarted safely fails the process ([`Registry::failed`]). The
//! state of all components is visible to health checks and metrics ([`Registry`]).
//!
//! Work that a component does in other tasks stays its own: [`spawn`] and [`inherit`] keep the component's name for panics,
//! [`spawn_linked`] fails the component when the task panics, and [`join_all`] passes on a panic of a set of tasks.

mod backoff;
pub mod fault;
mod metrics;
mod panic_hook;
mod panics;
mod registry;
mod run;
mod supervisor;

pub use metrics::write_metrics;
pub use panic_hook::install_panic_hook;
pub use panics::{caught, panic_message};
pub use registry::{ComponentFailure, ComponentReport, Registry};
pub use run::{Run, current_run, inherit, join_all, spawn, spawn_linked, within};
pub use supervisor::{Ending, Supervisor, spawn_restarting};
