//! Pods.

pub mod defaults;
