//! The rules of each built-in kind: defaults, validation, what an update may change, table columns, conversions.
//!
//! [`KindRules`] is the interface; start reading there. There is one file or directory per kind, grouped by API group;
//! [`rules_of`] finds the rules of a kind. What is the same for all kinds is in `metadata` and in the API server.

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
pub mod features;
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

pub use features::Features;
pub use kind::{Column, ColumnPriority, Context, Description, KindRules};
pub use registry::rules_of;
