//! Placeholder opening; replaced by the crate's own.
