//! The scheduler: selects a node for each pod that has none.
//!
//! Input: pods, nodes and volumes from the API. Output: bindings, and on unschedulable pods a condition and an event that
//! say why. One task owns all state and decides pod after pod; bindings are in flight while the next pod is decided.
//!
//! The path of a pod: `changes` (it is new) → `queue` (which pod next) → `decision` → `cycle` (filter, score, choose) →
//! `plugins` (one file each, built by `profile`) → `preemption` (which victims) → `bind`. `cluster` is the state that decisions read; it changes
//! by one pod or node at a time and nothing in it is recomputed for a pod.

mod bind;
mod changes;
pub mod cluster;
pub mod config;
pub mod cycle;
mod decision;
mod device_binding;
pub mod devices;
pub mod diagnosis;
pub mod extender;
pub mod framework;
mod handlers;
mod journey_events;
mod metrics;
pub mod nominations;
pub mod plugins;
pub mod preemption;
pub mod profile;
pub mod queue;
pub mod rejection;
pub mod resource_metrics;
mod scheduler;
mod steady_clock;
mod volumes;

pub use config::Configuration;
pub use scheduler::{Settings, run};
