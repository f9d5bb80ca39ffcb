//! Where pods come from: the API, and a directory of manifests.

mod api;
mod manifests;
mod references;

pub use api::watch_api;
pub use manifests::watch_manifests;

/// The manifest parser, for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    /// Parses a manifest as if it were in a node's manifest directory.
    pub fn manifest(text: &str) {
        drop(super::manifests::parse(text, "node", None));
    }
}
