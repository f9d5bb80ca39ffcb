//! Whether a request to the kubelet is allowed: the API server decides, by the part of the node that a path belongs to.

use http::{Method, Request, Response, StatusCode};
use knarr_client::delegated_access::{AccessError, AccessSettings, Attributes, DelegatedAccess};
use kube::Client;
use rustls_pki_types::CertificateDer;

use super::route::segments;
use super::{Body, text};
use crate::settings::EndpointAccess;

pub struct Access {
    access: DelegatedAccess,
    /// Whether the API server decides; otherwise everybody who is authenticated may do everything.
    is_authorized: bool,
    node: String,
}

impl Access {
    pub fn new(client: Client, node: &str, settings: &EndpointAccess) -> Self {
        let lifetimes = settings.decisions.unwrap_or_default();
        let access = AccessSettings {
            anonymous: settings.anonymous,
            tokens: settings.tokens,
            allowed: lifetimes.allowed,
            denied: lifetimes.denied,
        };
        Self {
            access: DelegatedAccess::new(client.clone(), client, access),
            is_authorized: settings.decisions.is_some(),
            node: node.to_string(),
        }
    }

    /// Checks a request. The error is the response to send if it is not allowed.
    pub async fn check<B>(
        &self,
        request: &Request<B>,
        certificate: Option<&CertificateDer<'static>>,
    ) -> Result<(), Response<Body>> {
        let user = self.access.authenticate(request.headers(), certificate).await.map_err(failure)?;
        if !self.is_authorized {
            return Ok(());
        }
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
    match segments(path).next().as_deref() {
        Some("stats") => &["stats"],
        Some("metrics") => &["metrics"],
        Some("logs") => &["log"],
        Some("checkpoint") => &["checkpoint"],
        Some("statusz") => &["statusz"],
        Some("flagz") => &["configz"],
        Some("configz") => &["configz", "proxy"],
        Some("healthz") => &["healthz", "proxy"],
        Some("pods" | "runningpods") => &["pods", "proxy"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::DecisionLifetimes;

    /// An API server that knows the token `good`, and allows nothing.
    fn client() -> Client {
        let respond = |request: Request<kube::client::Body>| async move {
            let body = http_body_util::BodyExt::collect(request.into_body()).await?.to_bytes();
            let mut review: serde_json::Value = serde_json::from_slice(&body)?;
            let is_good = review["spec"]["token"] == "good";
            review["status"] = match review["kind"] == "TokenReview" && is_good {
                true => serde_json::json!({ "authenticated": true, "user": { "username": "ann" } }),
                false => serde_json::json!({ "allowed": false }),
            };
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Response::new(kube::client::Body::from(
                serde_json::to_vec(&review)?,
            )))
        };
        Client::new(tower::service_fn(respond), "default")
    }

    #[tokio::test]
    async fn settings_say_who_may_use_the_endpoints() {
        let tokens = Some(std::time::Duration::from_secs(1));
        let decisions = Some(DecisionLifetimes::default());
        for (anonymous, tokens, decisions, expected) in [
            (false, tokens, decisions, [401, 401, 403]),
            (true, tokens, decisions, [403, 401, 403]),
            (false, tokens, None, [401, 401, 200]),
            (true, tokens, None, [200, 401, 200]),
            // Without reviews of tokens, a token is no credential.
            (true, None, None, [200, 200, 200]),
            (false, None, None, [401, 401, 401]),
        ] {
            let access = Access::new(client(), "node", &EndpointAccess { anonymous, tokens, decisions });
            let mut found = Vec::new();
            for token in [None, Some("bad"), Some("good")] {
                let mut request = Request::get("/pods").body(()).expect("a request");
                if let Some(token) = token {
                    let value = format!("Bearer {token}").parse().expect("a header");
                    request.headers_mut().insert(http::header::AUTHORIZATION, value);
                }
                let checked = access.check(&request, None).await;
                found.push(checked.err().map_or(200, |denied| denied.status().as_u16()));
            }
            assert_eq!(found, expected, "anonymous: {anonymous}, tokens: {tokens:?}, decisions: {decisions:?}");
        }
    }

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
            // The same endpoints, written in another way, and one that is none.
            ("//logs/x", "log"),
            ("/%6cogs/x", "log"),
            ("//checkpoint/a/b/c", "checkpoint"),
            ("/metrics%2fcadvisor", "proxy"),
        ] {
            assert_eq!(subresources(path).join(" "), expected, "{path}");
        }
    }
}
