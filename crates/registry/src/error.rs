//! Errors as the distribution specification reports them to clients.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("blob unknown to registry")]
    BlobUnknown,
    #[error("blob upload unknown to registry")]
    UploadUnknown,
    #[error("blob upload invalid: {0}")]
    UploadInvalid(String),
    #[error("provided digest did not match uploaded content")]
    DigestInvalid,
    #[error("manifest unknown to registry")]
    ManifestUnknown,
    #[error("manifest invalid: {0}")]
    ManifestInvalid(String),
    #[error("manifest references a blob that is unknown to registry: {0}")]
    ManifestBlobUnknown(String),
    #[error("invalid repository name")]
    NameInvalid,
    #[error("repository name not known to registry")]
    NameUnknown,
    #[error("the operation is unsupported")]
    Unsupported,
    #[error("requested access to the resource is denied: this address only serves pulls")]
    Denied,
    #[error("requested access to the resource is denied: web pages cannot use this address")]
    WebPage,
    #[error("the requested range is not satisfiable")]
    Range { size: u64 },
    #[error("the client did not send its data in time")]
    Slow,
    #[error("cannot read the request")]
    Body(#[source] hyper::Error),
    #[error("the registry's disk failed: {0}")]
    Disk(#[from] std::io::Error),
}

impl Error {
    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Error::BlobUnknown => (StatusCode::NOT_FOUND, "BLOB_UNKNOWN"),
            Error::UploadUnknown => (StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN"),
            Error::UploadInvalid(_) => (StatusCode::RANGE_NOT_SATISFIABLE, "BLOB_UPLOAD_INVALID"),
            Error::DigestInvalid => (StatusCode::BAD_REQUEST, "DIGEST_INVALID"),
            Error::ManifestUnknown => (StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN"),
            Error::ManifestInvalid(_) => (StatusCode::BAD_REQUEST, "MANIFEST_INVALID"),
            Error::ManifestBlobUnknown(_) => (StatusCode::NOT_FOUND, "MANIFEST_BLOB_UNKNOWN"),
            Error::NameInvalid => (StatusCode::BAD_REQUEST, "NAME_INVALID"),
            Error::NameUnknown => (StatusCode::NOT_FOUND, "NAME_UNKNOWN"),
            Error::Unsupported => (StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED"),
            Error::Denied | Error::WebPage => (StatusCode::FORBIDDEN, "DENIED"),
            Error::Range { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, "SIZE_INVALID"),
            Error::Slow => (StatusCode::REQUEST_TIMEOUT, "UNKNOWN"),
            Error::Body(_) => (StatusCode::BAD_REQUEST, "UNKNOWN"),
            Error::Disk(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                (StatusCode::INSUFFICIENT_STORAGE, "TOOMANYREQUESTS")
            }
            Error::Disk(_) => (StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN"),
        }
    }

    pub fn response(&self) -> Response<Bytes> {
        let (status, code) = self.code();
        if status.is_server_error() {
            tracing::warn!(error = %self, "the registry cannot serve a request");
        }
        let body = json!({"errors": [{"code": code, "message": self.to_string()}]}).to_string();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        if let Error::Range { size } = self
            && let Ok(value) = format!("bytes */{size}").parse()
        {
            response.headers_mut().insert(http::header::CONTENT_RANGE, value);
        }
        response
    }
}
