//! Ports of Services and pods as links: `/ui/forward/KEY/` leads to the proxy of one port, as the user of the session that
//! created the link.
//!
//! What comes back is a page of a workload, which is not trusted, on the origin of this server. The policy that each
//! response gets gives it an origin of its own: its scripts run, but can neither read the session of the cluster's page nor
//! use it. The key is good for this port only. The workload gets neither the key nor a cookie.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_METHOD, CONTENT_SECURITY_POLICY, COOKIE, HeaderMap, HeaderName, HeaderValue, LOCATION,
    REFERER, REFERRER_POLICY,
};
use http::{Method, Request, Response, Uri};
use knarr_api::status::Status;
use rustls_pki_types::UnixTime;
use serde::Deserialize;
use serde_json::json;

use super::SessionToken;
use crate::authenticate::{Credential, impersonate_as};
use crate::authorized_request::AuthorizedRequest;
use crate::request::{Sender, Target};
use crate::response::{self, Body};
use crate::route::accept::Format;
use crate::state::ApiServer;

/// What links start with.
const PREFIX: &str = "/ui/forward/";

/// The page of a workload has an origin of its own, opens no other pages outside of it, and is not embedded.
const POLICY: &str =
    "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads; frame-ancestors 'none'";

/// Headers that concern everything of this server's origin, the cluster's page too, or would outlive the workload's page: a
/// worker or a policy that reports addresses of other pages, keys of links among them.
const OF_THE_ORIGIN: [&str; 10] = [
    "accept-ch",
    "alt-svc",
    "clear-site-data",
    "nel",
    "origin-agent-cluster",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "strict-transport-security",
];

/// The path by which the browser sees what a proxied request leads to.
#[derive(Clone)]
pub struct ProxyPath(pub String);

/// Whether a path is that of a forwarded port.
pub fn is_forwarded(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// A request for a forwarded port as a request to the proxy, with its sender; or the response if there is no such port.
pub fn resolve<B>(server: &ApiServer, mut request: Request<B>) -> Result<(Request<B>, Sender), Box<Response<Body>>> {
    let path = request.uri().path().to_owned();
    let (key, rest) = match path[PREFIX.len()..].split_once('/') {
        Some((key, rest)) => (key, rest),
        // Relative links need the slash.
        None => return Err(Box::new(redirect(&format!("{path}/")))),
    };
    let Some((target, credential)) = server.security.sessions.forward(key, Instant::now()) else {
        let ended =
            "This link has ended with the session that created it. Open the port again on the cluster's page.\n";
        return Err(Box::new(response::text(404, ended)));
    };
    if request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return Err(Box::new(response::text(204, "")));
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let absent = || Box::new(response::page_not_found());
    *request.uri_mut() = Uri::try_from(format!("{target}/{rest}{query}")).map_err(|_| absent())?;
    remove_foreign(request.headers_mut());
    request.extensions_mut().insert(ProxyPath(format!("{PREFIX}{key}")));
    let sender = sender(credential, request.headers_mut(), UnixTime::now()).ok_or_else(absent)?;
    Ok((request, sender))
}

/// Removes what the page of a workload must neither learn nor choose: the browser's secrets, and whom the user impersonates.
fn remove_foreign(headers: &mut HeaderMap) {
    let is_foreign =
        |name: &&HeaderName| **name == COOKIE || **name == REFERER || name.as_str().starts_with("impersonate-");
    let foreign: Vec<HeaderName> = headers.keys().filter(is_foreign).cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
}

/// Who sends a request: the user that the session stands for, the owner of its certificate, or the bearer of its token.
pub fn sender(credential: Credential, headers: &mut HeaderMap, now: UnixTime) -> Option<Sender> {
    headers.remove(http::header::AUTHORIZATION);
    if let Credential::Token(_, impersonated) | Credential::Certificate(_, impersonated) = &credential
        && !impersonated.is_empty()
    {
        impersonate_as(headers, impersonated);
    }
    match credential {
        Credential::User(user) => Some(Sender::Remote(Some(user))),
        Credential::Certificate(connection, _) => Some(connection.sender(now)),
        Credential::Token(token, _) => {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            headers.insert(http::header::AUTHORIZATION, value);
            Some(Sender::Remote(None))
        }
    }
}

fn redirect(path: &str) -> Response<Body> {
    let mut response = response::text(308, "");
    if let Ok(path) = HeaderValue::from_str(path) {
        response.headers_mut().insert(LOCATION, path);
    }
    response
}

/// The response of a workload, or about it, as the browser may have it.
///
/// The page's own requests come from an origin of its own, so they need permission to read responses; only who has the key
/// can send them.
pub fn secured(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for name in OF_THE_ORIGIN {
        headers.remove(name);
    }
    headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    for (name, value) in [
        (REFERRER_POLICY, "no-referrer"),
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (ACCESS_CONTROL_ALLOW_METHODS, "*"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "*"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The port that a link is wanted for.
#[derive(Deserialize)]
struct Port {
    namespace: String,
    resource: String,
    name: String,
    port: String,
    /// Whether the workload speaks TLS there.
    #[serde(default)]
    tls: bool,
}

impl Port {
    fn is_valid(&self) -> bool {
        let is_name = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
        };
        matches!(self.resource.as_str(), "services" | "pods")
            && [&self.namespace, &self.name, &self.port].into_iter().all(|text| is_name(text))
    }

    /// The name by which the proxy knows the port.
    fn proxied_name(&self) -> String {
        format!("{}{}:{}", if self.tls { "https:" } else { "" }, self.name, self.port)
    }
}

/// Creates a link to a port.
pub async fn create(server: &Arc<ApiServer>, request: &AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
    let Some(SessionToken(token)) = request.parts.extensions.get() else {
        return Err(Status::bad_request("a link belongs to a session of the page: use kubectl port-forward"));
    };
    let port = parse(&request.body)?;
    let (name, namespace, resource) = (port.proxied_name(), port.namespace, port.resource);
    let path = format!("/api/v1/namespaces/{namespace}/{resource}/{name}/proxy");
    let target = Target {
        verb: "get".to_owned(),
        version: "v1".to_owned(),
        subresource: "proxy".to_owned(),
        path: path.clone(),
        namespace,
        resource,
        name,
        ..Target::default()
    };
    server.authorize(request.user, &target).await?;
    let key = server.security.sessions.create_forward(token, &path, Instant::now()).ok_or_else(Status::unauthorized)?;
    Ok(response::value(&json!({"path": format!("{PREFIX}{key}/")}), 201, &Format::JSON))
}

fn parse(body: &Bytes) -> Result<Port, Status> {
    let port: Port = serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("the body does not name a port: {error}")))?;
    if port.is_valid() { Ok(port) } else { Err(Status::bad_request("only ports of Services and pods have links")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_one_port_and_nowhere_else() {
        let parsed = |body: serde_json::Value| parse(&Bytes::from(body.to_string())).map(|port| port.proxied_name());
        let web = json!({"namespace": "a", "resource": "services", "name": "web", "port": "http"});
        assert_eq!(parsed(web.clone()).ok().as_deref(), Some("web:http"));
        let mut tls = web.clone();
        tls["tls"] = json!(true);
        assert_eq!(parsed(tls).ok().as_deref(), Some("https:web:http"));
        for (field, value) in [
            ("resource", "nodes"),
            ("name", "web/../../secrets"),
            ("name", ""),
            ("namespace", "a/secrets"),
            ("port", "80/proxy?x="),
        ] {
            let mut port = web.clone();
            port[field] = json!(value);
            assert!(parsed(port).is_err(), "{field}: {value}");
        }
    }

    #[test]
    fn a_workload_page_chooses_no_user() {
        let mut headers = HeaderMap::new();
        for name in ["cookie", "referer", "impersonate-user", "impersonate-extra-scopes", "accept"] {
            headers.append(name, HeaderValue::from_static("a"));
            headers.append(name, HeaderValue::from_static("b"));
        }
        remove_foreign(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn a_workload_page_has_an_origin_of_its_own_and_sets_nothing() {
        let mut page = response::text(200, "<script>parent.steal()</script>");
        for name in ["set-cookie", "clear-site-data", "nel", "report-to", "alt-svc", "service-worker-allowed"] {
            page.headers_mut().insert(name, HeaderValue::from_static("a=b"));
        }
        page.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src *"));
        let page = secured(page);
        assert!(page.headers().values().all(|value| value != "a=b"), "{:?}", page.headers());
        let policies: Vec<_> = page.headers().get_all(CONTENT_SECURITY_POLICY).iter().collect();
        assert_eq!(policies, ["default-src *", POLICY], "the workload's own policy cannot replace ours");
        assert!(!POLICY.contains("allow-same-origin") && !POLICY.contains("allow-top-navigation"));
        assert!(!POLICY.contains("escape-sandbox"));
    }
}
