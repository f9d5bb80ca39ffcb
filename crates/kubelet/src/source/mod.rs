//! Where pods come from: the API, and a directory of manifests.

mod api;
mod manifests;

pub use api::watch_api;
pub use manifests::watch_manifests;

/// Parses a manifest as if it were in a node's manifest directory, for fuzzing.
pub(crate) fn fuzz_manifest(text: &str) {
    drop(manifests::parse(text, "node", Some(|_| Ok(()))));
}
