//! Errors of the driver and their gRPC codes.

use std::io;
use std::path::{Path, PathBuf};

use knarr_csi::Status;
use nix::errno::Errno;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong by itself.
    #[error("{0}")]
    Invalid(String),
    /// The volume, snapshot or path does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It exists with other properties.
    #[error("{0}")]
    Exists(String),
    /// The size is not possible.
    #[error("{0}")]
    Range(String),
    /// The disk has no room.
    #[error("{0}")]
    Exhausted(String),
    /// The volume is in use, or the node lacks something.
    #[error("{0}")]
    Precondition(String),
    /// Another operation on the same volume is running.
    #[error("an operation on {0} is in progress")]
    InProgress(String),
    /// The page token is not ours.
    #[error("the starting token {0} is not valid")]
    Token(String),
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// A program failed.
    #[error("{program} failed: {message}")]
    Program { program: String, message: String },
    /// Something of the driver itself failed.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// Wraps the error of a file operation: `.map_err(Error::file("open", path))`.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::File { action, path, source }
    }

    /// The same for system calls.
    pub fn system(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self + use<> {
        let wrap = Self::file(action, path);
        move |errno| wrap(io::Error::from(errno))
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Invalid(_) => Status::invalid_argument(text),
            Error::NotFound(_) => Status::not_found(text),
            Error::Exists(_) => Status::already_exists(text),
            Error::Range(_) => Status::out_of_range(text),
            Error::Exhausted(_) => Status::resource_exhausted(text),
            Error::Precondition(_) => Status::failed_precondition(text),
            Error::InProgress(_) | Error::Token(_) => Status::aborted(text),
            Error::File { source, .. } if is_full(&source) => Status::resource_exhausted(text),
            Error::File { .. } | Error::Program { .. } | Error::Internal(_) => Status::internal(text),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use knarr_csi::Code;

    use super::*;

    #[test]
    fn a_full_disk_is_no_internal_error() {
        let full = Error::system("write", Path::new("/image"))(Errno::ENOSPC);
        assert_eq!(Status::from(full).code(), Code::ResourceExhausted);
        let broken = Error::system("write", Path::new("/image"))(Errno::EIO);
        assert_eq!(Status::from(broken).code(), Code::Internal);
    }
}
