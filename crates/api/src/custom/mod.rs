//! Schemas of custom resources.

mod constraints;

pub use constraints::Constraints;
