//! Where pods come from: the API, and a folder of manifests.

mod api;
mod manifests;

pub use api::follow_api;
pub use manifests::follow_manifests;
