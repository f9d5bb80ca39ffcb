//! Whether a request to the kubelet is allowed: the API server decides, by the part of the node that a path belongs to.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use knarr_client::delegated_access::{AccessError, AccessSettings, Attributes, DelegatedAccess};
use kube::Client;
use rustls_pki_types::CertificateDer;

use super::{Body, text};

const SETTINGS: AccessSettings =
    AccessSettings { anonymous: false, allowed: Duration::from_secs(120), denied: Duration::from_secs(30) };

pub struct Access {
    access: DelegatedAccess,
    node: String,
}

impl Access {
    pub fn new(client: Client, node: &str) -> Self {
        Self { access: DelegatedAccess::new(client.clone(), client, SETTINGS), node: node.to_string() }
    }

    /// Checks a request. The error is the response to send if it is not allowed.
    pub async fn check<B>(
        &self,
        request: &Request<B>,
        certificate: Option<&CertificateDer<'static>>,
    ) -> Result<(), Response<Body>> {
        let user = self.access.authenticate(request.headers(), certificate).await.map_err(failure)?;
        let verb = verb(request.method());
        let subresources = subresources(request.uri().path());
        for subresource in subresources {
            let attributes = Attributes::Node { verb, subresource, node: self.node.clone() };
            if self.access.is_allowed(&user, attributes).await.map_err(failure)? {
                return Ok(());
            }
        }
        let last = subresources.last().copied().unwrap_or("proxy");
        Err(text(
            StatusCode::FORBIDDEN,
            format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{last}])\n", user.name),
        ))
    }
}

fn failure(error: AccessError) -> Response<Body> {
    match error {
        AccessError::Unauthenticated => text(StatusCode::UNAUTHORIZED, "Unauthorized"),
        AccessError::Review(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "Authorization error"),
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// The node subresources of a path, most specific first: access to any of them allows the request.
fn subresources(path: &str) -> &'static [&'static str] {
    let under = |prefix: &str| path == prefix || path.starts_with(&format!("{prefix}/"));
    if under("/stats") {
        &["stats"]
    } else if under("/metrics") {
        &["metrics"]
    } else if under("/logs") {
        &["log"]
    } else if under("/checkpoint") {
        &["checkpoint"]
    } else if under("/statusz") {
        &["statusz"]
    } else if under("/flagz") {
        &["configz"]
    } else if under("/configz") {
        &["configz", "proxy"]
    } else if under("/healthz") {
        &["healthz", "proxy"]
    } else if under("/pods") || under("/runningpods") {
        &["pods", "proxy"]
    } else {
        &["proxy"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_belong_to_parts_of_the_node() {
        for (path, expected) in [
            ("/metrics/cadvisor", "metrics"),
            ("/metricsx", "proxy"),
            ("/stats/summary", "stats"),
            ("/exec/a/b/c", "proxy"),
            ("/healthz", "healthz proxy"),
            ("/logs/", "log"),
            ("/statusz", "statusz"),
            ("/flagz", "configz"),
            ("/checkpoint/a/b/c", "checkpoint"),
            // What is written in another way is not less.
            ("//metrics", "proxy"),
            ("/%6detrics", "proxy"),
            ("/metrics%2fcadvisor", "proxy"),
        ] {
            assert_eq!(subresources(path).join(" "), expected, "{path}");
        }
    }
}
