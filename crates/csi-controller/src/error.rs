//! Errors of a reconciliation.

use knarr_client::api_error;
pub(crate) use knarr_client::api_error::{ignore_not_found, is_already_there};
use knarr_csi::{CallError, Code};

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

impl Error {
    /// The code of a driver's error.
    pub fn code(&self) -> Option<Code> {
        if let Self::Call(error) = self { Some(error.code()) } else { None }
    }
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
