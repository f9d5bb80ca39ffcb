//! Pods.

pub mod annotations;
pub mod defaults;
pub mod options;
pub mod validation;
