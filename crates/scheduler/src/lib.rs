//! The scheduler: picks a node for each pod that has none.
//!
//! In: pods, nodes and volumes from the API. Out: bindings, and on pods that fit nowhere a condition and an event that
//! say why. One task owns all state and decides pod after pod; bindings are in flight while the next pod is decided.
//!
//! Follow a pod: `changes` (it is new) → `queue` (which pod next) → `decision` → `cycle` (filter, score, choose) → `plugins`
//! (one file each) → `preemption` (who could make room) → `bind`. `cluster` is what the decisions look at; it changes by one pod or node at a time and
//! nothing in it is computed anew for a pod.

mod bind;
mod changes;
pub mod cluster;
pub mod config;
pub mod cycle;
mod decision;
pub mod diagnosis;
pub mod extender;
pub mod framework;
mod handlers;
pub mod nominations;
pub mod plugins;
pub mod preemption;
pub mod queue;
mod scheduler;
mod volumes;

pub use config::Configuration;
pub use scheduler::{Settings, run};
