//! The kinds of the core group.

pub mod pod;
pub mod pod_template;
