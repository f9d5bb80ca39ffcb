//! Proxies requests to aggregated API servers.

use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, LOCATION, UPGRADE};
use http::{HeaderMap, Response, StatusCode};

use super::{Aggregation, Remote};
use crate::authenticate::RequestHeaders;
use crate::authorized_request::AuthorizedRequest;
use crate::request::User;
use crate::response::{self, Body};
use crate::reverse_proxy::{failed_upgrade, forward_request, forwarded_headers};

/// Forwards a request to the server of its group version. `of_users` are the headers by which front proxies name users.
pub async fn serve(
    aggregation: &Aggregation,
    of_users: &RequestHeaders,
    remote: &Remote,
    request: &mut AuthorizedRequest<'_>,
) -> Response<Body> {
    if !remote.available {
        return response::text(503, "service unavailable\n");
    }
    let identity = aggregation.identity();
    let connection = match remote.connect(aggregation, identity.as_deref()).await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(%error, name = remote.name, "cannot connect to an aggregated API server");
            return response::text(503, format!("error trying to reach service: {error}\n"));
        }
    };
    let mut headers = headers_for(&request.parts.headers, of_users);
    if let Err(error) = user_headers(&mut headers, request.user) {
        return response::internal_error(request.parts, &error);
    }
    if let Ok(host) = HeaderValue::from_str(&remote.destination.authority()) {
        headers.insert(HOST, host);
    }
    let span = request.running.span(format!("HTTP {}", request.parts.method));
    if let Some(span) = &span {
        headers.insert(knarr_traces::TRACEPARENT, span.context().header());
    }
    let is_upgrade = headers.contains_key(UPGRADE);
    let path = request.parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    match forward_request(request, connection, &path, headers).await {
        Ok(proxied) => match refusal(is_upgrade, proxied.response.status(), proxied.response.headers()) {
            Some(refusal) => refusal,
            None => proxied.into_response(request).unwrap_or_else(|status| response::text(status.code, status.message)),
        },
        Err(error) => response::text(503, format!("error trying to reach service: {error}\n")),
    }
}

/// The headers of a client without its credentials, and without those that name users: the other server believes this one,
/// whatever names the administrator chose for them.
fn headers_for(own: &HeaderMap, of_users: &RequestHeaders) -> HeaderMap {
    forwarded_headers(own, |name| {
        name != AUTHORIZATION
            && name != HOST
            && !name.as_str().starts_with("x-remote-")
            && !name.as_str().starts_with("impersonate-")
            && !of_users.is_one(name)
    })
}

/// The error in place of a response that would redirect the client with its credentials, or pretend that a stream is
/// open.
fn refusal(is_upgrade: bool, status: StatusCode, headers: &HeaderMap) -> Option<Response<Body>> {
    if is_upgrade {
        return failed_upgrade(status).map(|why| response::text(503, format!("{why}\n")));
    }
    let redirects = status.is_redirection() && headers.get_all(LOCATION).iter().any(|location| !location.is_empty());
    const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";
    redirects.then(|| response::text(502, REDIRECTED))
}

/// A user that headers cannot name. Leaving out what cannot be named would make it another user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the user cannot be named in the header {0}")]
pub struct UserHeaderError(String);

/// Sets the front-proxy headers that name the user. Text is sent as UTF-8, as Kubernetes does.
pub fn user_headers(headers: &mut HeaderMap, user: &User) -> Result<(), UserHeaderError> {
    let mut add = |name: &str, value: &str| {
        let failed = || UserHeaderError(name.to_owned());
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| failed())?;
        headers.append(header, HeaderValue::from_bytes(value.as_bytes()).map_err(|_| failed())?);
        Ok(())
    };
    add("x-remote-user", &user.name)?;
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid)?;
    }
    for group in &user.groups {
        add("x-remote-group", group)?;
    }
    for (key, values) in &user.extra {
        for value in values {
            add(&format!("x-remote-extra-{}", escaped(key)), value)?;
        }
    }
    Ok(())
}

/// Percent-encodes a key for use in a header name.
fn escaped(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    key.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::test_server::TestServer;
    use crate::outbound::{Destination, Trust};
    use crate::request_tests::{Cluster, admin};
    use http_body_util::BodyExt;
    use std::sync::Arc;

    #[test]
    fn redirects_of_aggregated_servers_are_refused() {
        for (is_upgrade, status, locations, expected) in [
            (false, 200, &[][..], None),
            (false, 302, &["https://evil.example/"], Some(502)),
            (false, 302, &["", "https://evil.example/"], Some(502)),
            (false, 301, &["/apis/other"], Some(502)),
            (false, 307, &["//evil.example"], Some(502)),
            (false, 308, &["https://evil.example/"], Some(502)),
            (false, 304, &[], None),
            (false, 304, &[""], None),
            (false, 404, &["https://evil.example/"], None),
            (true, 101, &[], None),
            (true, 200, &[], Some(503)),
            (true, 302, &["https://evil.example/"], Some(503)),
            (true, 403, &[], None),
        ] {
            let mut headers = HeaderMap::new();
            for to in locations {
                headers.append(LOCATION, HeaderValue::from_static(to));
            }
            let refusal = refusal(is_upgrade, StatusCode::from_u16(status).unwrap(), &headers);
            assert_eq!(refusal.as_ref().map(|response| response.status().as_u16()), expected, "{is_upgrade} {status}");
            assert!(refusal.is_none_or(|response| !response.headers().contains_key(LOCATION)), "{is_upgrade} {status}");
        }
    }

    /// CVE-2022-3172.
    #[tokio::test]
    async fn a_redirect_of_an_aggregated_server_does_not_reach_the_client() {
        let elsewhere = TestServer::start(|_, _| serde_json::Value::Null).await;
        let target = format!("https://localhost:{}/", elsewhere.port);
        let backend = TestServer::respond(None, move |_| {
            Response::builder().status(302).header(LOCATION, &target).body(Default::default()).unwrap()
        })
        .await;
        let cluster = Cluster::new().await;
        let remote = Remote {
            name: "v1.example.com".into(),
            group: "example.com".into(),
            version: "v1".into(),
            group_priority: 1,
            version_priority: 1,
            destination: Destination { host: "localhost".into(), port: backend.port, ..Destination::default() },
            trust: Trust::Anyone,
            available: true,
            resources: None,
        };
        cluster.server().discovery.aggregation.set(vec![Arc::new(remote)], Default::default());
        let request = http::Request::get("/apis/example.com/v1/things").body(http_body_util::Empty::new()).unwrap();
        let response = cluster.server().handle::<http_body_util::Empty<bytes::Bytes>>(request, &admin()).await;
        assert_eq!((response.status().as_u16(), response.headers().get(LOCATION)), (502, None));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "the backend attempted to redirect this request, which is not permitted");
        assert_eq!((backend.received().len(), elsewhere.connections()), (1, 0));
    }

    #[test]
    fn clients_name_no_users_to_aggregated_servers() {
        let one = |name: &str| vec![name.to_owned()];
        let of_users = RequestHeaders { username: one("X-User"), group: one("X-Team"), ..RequestHeaders::default() };
        let mut own = HeaderMap::new();
        for name in [
            "authorization",
            "host",
            "impersonate-group",
            "x-remote-user",
            "x-remote-extra-scope",
            "x-user",
            "x-team",
            "sec-websocket-protocol",
        ] {
            own.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static("base64url.bearer.authorization.k8s.io.eA"),
            );
        }
        assert!(headers_for(&own, &of_users).is_empty());
        own.insert("accept", HeaderValue::from_static("application/json"));
        assert_eq!(headers_for(&own, &of_users).len(), 1);
    }

    #[test]
    fn users_are_named_in_headers() {
        let mut user = User::named("ann", &["a", "b"]);
        user.extra.insert("example.com/key".to_owned(), vec!["v".to_owned()]);
        let mut headers = HeaderMap::new();
        user_headers(&mut headers, &user).unwrap();
        assert_eq!(headers["x-remote-user"], "ann");
        assert_eq!(headers.get_all("x-remote-group").iter().count(), 2);
        assert_eq!(headers["x-remote-extra-example.com%2fkey"], "v");
    }

    #[test]
    fn users_that_headers_cannot_name_are_refused() {
        let mut headers = HeaderMap::new();
        user_headers(&mut headers, &User::named("müller", &["größe"])).unwrap();
        assert_eq!(headers["x-remote-user"].as_bytes(), "müller".as_bytes());
        for user in [User::named("a\nb", &[]), User::named("a", &["ok", "b\0"])] {
            assert!(user_headers(&mut HeaderMap::new(), &user).is_err(), "{user:?}");
        }
    }
}
