//! What a custom resource's schema demands of values beyond their type.

/// The demands on one value.
#[derive(Clone, Debug, Default)]
pub struct Constraints {}
