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

pub use knarr_client::api_error::message;

pub type Result<T, E = Error> = std::result::Result<T, E>;

pub fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

pub fn is_not_found(error: &kube::Error) -> bool {
    has_code(error, 404)
}

pub fn is_already_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

/// Nothing can be created in a terminating namespace.
pub fn namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating")
}

/// Treats "not found" as success.
pub fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
