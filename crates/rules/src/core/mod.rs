//! The kinds of the core group.

pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_template;
pub mod volume;
