//! The parsers of what both backends have on disk, for fuzzing.

pub use crate::embedded::fuzzing::{image, log, records};

/// Reads bytes as a database of etcd.
pub fn database(bytes: &[u8]) {
    crate::etcd::fuzz_database(bytes);
}

/// A small database of etcd.
pub fn database_seed() -> Vec<u8> {
    crate::etcd::seed_database()
}
