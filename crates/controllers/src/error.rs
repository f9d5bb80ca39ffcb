//! Errors of a reconciliation, and whether they are retried.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", message(.0))]
    Api(#[from] kube::Error),
    #[error("cannot write an object as JSON")]
    Json(#[from] serde_json::Error),
    /// The namespace is terminating; nothing can be created in it, so retrying is useless.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,
    /// A temporary condition: the cache is stale, or another component must act first.
    #[error("{0}")]
    Later(String),
}

pub use knarr_client::api_error::{has_code, ignore_not_found, is_already_there, is_conflict, is_not_found, message};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Nothing can be created in a terminating namespace.
pub fn namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating")
}
