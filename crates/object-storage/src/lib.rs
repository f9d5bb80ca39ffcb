//! Objects in S3-compatible storage: put a file, get, list and delete.
//!
//! Requests are signed by `rusty_s3` as presigned URLs; this crate sends them, with timeouts and retries (`request`), uploads
//! large files in parts (`upload`) and reads the credentials from a file for each operation (`credentials`), so that they can be
//! replaced while the server runs. Neither credentials nor signed URLs appear in errors.

mod credentials;
mod location;
mod request;
mod storage;
mod upload;

#[cfg(test)]
mod fake_storage;
#[cfg(test)]
mod tests;

pub use location::{InvalidLocation, Location};
pub use storage::{Object, Settings, Storage};
pub use url::Url;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}")]
    File { path: std::path::PathBuf, source: std::io::Error },
    #[error("{0} is readable by other users: chmod 0600 it")]
    Permissions(std::path::PathBuf),
    #[error("{0} contains no {1}")]
    Credentials(std::path::PathBuf, &'static str),
    #[error("{0} contains no certificate in PEM form")]
    Authority(std::path::PathBuf),
    #[error("the endpoint of the storage must be a URL such as https://storage.example.org, without a query")]
    Endpoint,
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("cannot reach {server}")]
    Connect { server: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{0} did not respond in time")]
    Timeout(String),
    #[error("{server} responded with {status}: {code}")]
    Status { server: String, status: http::StatusCode, code: String },
    #[error("{0} sent a response that is not one of S3")]
    Response(String),
    #[error("the list of objects at {0} is too long: choose a longer prefix")]
    LongList(String),
    #[error("{0} is too large")]
    TooLarge(std::path::PathBuf),
}
