//! What is special to each built-in kind: its defaults, its validation, what a write may change, its table columns.
//!
//! In: a decoded object. Out: the object with defaults set, or all that is wrong with it. One file a kind; what is the
//! same for all kinds is in the API server's one path and never here.

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod common;
pub mod coordination;
pub mod core;
pub mod discovery;
pub mod flowcontrol;
mod kind;
pub mod metadata;
pub mod networking;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod registry;
pub mod resource;
pub mod scheduling;
pub mod storage;
#[cfg(test)]
mod testing;

pub use kind::{Column, ColumnPriority, Context, Description, KindRules};
pub use registry::rules_of;
