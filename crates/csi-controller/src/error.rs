//! Errors of a reconciliation.

use knarr_client::api_error;
use knarr_csi::CallError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", api_error::message(.0))]
    Api(#[from] kube::Error),
    #[error("{0}")]
    Call(#[from] CallError),
    /// A user must change something; retried in case they do.
    #[error("{0}")]
    Refused(String),
    /// Another component must act first.
    #[error("{0}")]
    Later(String),
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn is_already_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Treats "not found" as success.
pub(crate) fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}
