//! Whether a request to a component is allowed: the API server decides, except for paths that are open to all.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use knarr_client::delegated_access::{AccessError, AccessSettings, Attributes, DelegatedAccess};
use knarr_client::kube::Client;
use rustls_pki_types::CertificateDer;
use serde_json::json;

/// Requests without credentials are those of the anonymous user, as in Kubernetes.
const SETTINGS: AccessSettings =
    AccessSettings { anonymous: true, tokens: Some(CACHED), allowed: CACHED, denied: CACHED };
const CACHED: Duration = Duration::from_secs(10);

pub struct Access {
    access: DelegatedAccess,
    always_allowed: Vec<String>,
}

type Denied = Response<Full<Bytes>>;

impl Access {
    pub fn new(authentication: Client, authorization: Client, always_allowed: Vec<String>) -> Self {
        Self { access: DelegatedAccess::new(authentication, authorization, SETTINGS), always_allowed }
    }

    /// Checks a request. The error is the response to send if it is not allowed.
    pub async fn check<B>(
        &self,
        request: &Request<B>,
        certificate: Option<&CertificateDer<'static>>,
    ) -> Result<(), Denied> {
        let path = request.uri().path();
        if is_always_allowed(&self.always_allowed, path) {
            return Ok(());
        }
        let user = self.access.authenticate(request.headers(), certificate).await.map_err(refuse)?;
        let verb = verb(request.method());
        let attributes = Attributes::Path { verb, path: path.to_owned() };
        if self.access.is_allowed(&user, attributes).await.map_err(refuse)? {
            return Ok(());
        }
        let message = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
        Err(failure(StatusCode::FORBIDDEN, "Forbidden", &message))
    }
}

fn refuse(error: AccessError) -> Denied {
    match error {
        AccessError::Unauthenticated => failure(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"),
        AccessError::Review(_) => {
            failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "Internal error occurred: authorization failed")
        }
    }
}

/// Whether a path is exempt: a pattern that ends in `*` is a prefix.
fn is_always_allowed(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == pattern,
    })
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        _ => "get",
    }
}

fn failure(code: StatusCode, reason: &str, message: &str) -> Denied {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": {}, "code": code.as_u16()});
    super::pages::with_type(code, "application/json", status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exempt_paths_match_whole_or_by_prefix() {
        let patterns = ["/healthz", "/livez*"].map(str::to_owned);
        for (path, allowed) in
            [("/healthz", true), ("/healthz/ping", false), ("/livez/ping", true), ("/metrics", false)]
        {
            assert_eq!(is_always_allowed(&patterns, path), allowed, "{path}");
        }
    }
}
