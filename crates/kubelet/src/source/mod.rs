//! Where pods come from: the API, and a folder of manifests.

mod api;
mod manifests;
mod references;

pub use api::follow_api;
pub use manifests::follow_manifests;

/// The reader of manifests, for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads a manifest as one of a node's folder.
    pub fn manifest(text: &str) {
        drop(super::manifests::parse(text, "node", None));
    }
}
