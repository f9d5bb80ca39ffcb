//! Requests for what another server serves.

use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Response};

use super::Remote;
use crate::answer::{self, Body};
use crate::outbound::{onward_headers, pass};
use crate::request::User;
use crate::server::{Admitted, Server};

/// Passes a request on to the server that serves its group version.
pub async fn serve(server: &Server, remote: &Remote, request: &mut Admitted<'_>) -> Response<Body> {
    if !remote.available {
        return answer::text(503, "service unavailable\n");
    }
    let identity = server.aggregation.identity();
    let connection = match remote.connect(server, identity.as_deref()).await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(%error, name = remote.name, "an aggregated API is not reached");
            return answer::text(503, format!("error trying to reach service: {error}\n"));
        }
    };
    let keep = |name: &HeaderName| {
        name != AUTHORIZATION
            && name != HOST
            && !name.as_str().starts_with("x-remote-")
            && !name.as_str().starts_with("impersonate-")
    };
    let mut headers = onward_headers(&request.parts.headers, keep);
    user_headers(&mut headers, request.user);
    if let Ok(host) = HeaderValue::from_str(&remote.destination.authority()) {
        headers.insert(HOST, host);
    }
    let path = request.parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    match pass(request, connection, &path, headers).await {
        Ok(passed) => passed.into_response(request).unwrap_or_else(|status| answer::text(status.code, status.message)),
        Err(error) => answer::text(503, format!("error trying to reach service: {error}\n")),
    }
}

/// Says who asks, in the headers that other servers believe from us.
pub fn user_headers(headers: &mut HeaderMap, user: &User) {
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid);
    }
    for group in &user.groups {
        add("x-remote-group", group);
    }
    for (key, values) in &user.extra {
        for value in values {
            add(&format!("x-remote-extra-{}", escaped(key)), value);
        }
    }
}

/// A key as the end of a header's name: what cannot stand there is written as its bytes.
fn escaped(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    key.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_in_headers() {
        let mut user = User::named("ann", &["a", "b"]);
        user.extra.insert("example.com/key".to_owned(), vec!["v".to_owned()]);
        let mut headers = HeaderMap::new();
        user_headers(&mut headers, &user);
        assert_eq!(headers["x-remote-user"], "ann");
        assert_eq!(headers.get_all("x-remote-group").iter().count(), 2);
        assert_eq!(headers["x-remote-extra-example.com%2fkey"], "v");
    }
}
