//! The web page below `/ui/`: its files, the sign-in of browsers, and the diagnosis of the cluster it shows first.
//!
//! `POST /ui/link`, sent with the credentials of a user, creates a code that works once. A browser exchanges it at
//! `/ui/session` for a token, which stands for the credentials that the link was created with: a bearer token or a
//! client certificate is verified again for each request, so that a session never outlives it.

pub mod forward;
#[cfg(test)]
mod hostile_tests;
mod listed;
mod own_client;
mod problems;
mod requests;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_SECURITY_POLICY, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION, SEC_WEBSOCKET_PROTOCOL,
};
use http::request::Parts;
use http::{Method, Response};
use knarr_api::status::Status;
use knarr_ui::{Asset, CODE_LIFETIME, SESSION_LIFETIME, TOKEN_PREFIX};
use rustls_pki_types::UnixTime;
use serde::Deserialize;
use serde_json::json;

use crate::authenticate::{ClientConnection, Credential, bearer, impersonation_headers};
use crate::authorized_request::AuthorizedRequest;
use crate::request::{ANONYMOUS, Sender, User};
use crate::response::{self, Body};
use crate::route::accept::Format;
use crate::state::{ApiServer, Security};

/// A request that needs no credentials: the files of the page are public, and a code proves itself.
pub enum PublicRequest {
    /// `/ui` leads to `/ui/`.
    Redirect,
    Asset(Asset),
    SignIn,
}

/// The request for a public path, if it is one.
pub fn public_request(method: &Method, path: &str) -> Option<PublicRequest> {
    let below = path.strip_prefix("/ui")?;
    match (below, method) {
        ("", &Method::GET | &Method::HEAD) => Some(PublicRequest::Redirect),
        ("/session", &Method::POST) => Some(PublicRequest::SignIn),
        (_, &Method::GET | &Method::HEAD) => {
            let name = below.strip_prefix('/')?;
            let name = if name.is_empty() { "index.html" } else { name };
            knarr_ui::asset(name).map(PublicRequest::Asset)
        }
        _ => None,
    }
}

/// Handles a request for a public path.
pub fn serve_public(
    security: &Security,
    request: PublicRequest,
    parts: &Parts,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    match request {
        PublicRequest::Redirect => {
            let mut response = response::text(308, "");
            response.headers_mut().insert(LOCATION, HeaderValue::from_static("/ui/"));
            Ok(response)
        }
        PublicRequest::Asset(asset) => Ok(file(asset, parts)),
        PublicRequest::SignIn => sign_in(security, body),
    }
}

fn file(asset: Asset, parts: &Parts) -> Response<Body> {
    let tag = format!("\"{}-{}\"", env!("CARGO_PKG_VERSION"), crc32fast::hash(&asset.content));
    let is_current = parts.headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_current {
        response::with_type(304, asset.content_type, Body::Empty)
    } else {
        response::with_type(200, asset.content_type, Body::full(asset.content.into_owned()))
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(knarr_ui::CONTENT_SECURITY_POLICY));
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[derive(Deserialize)]
struct SignIn {
    code: String,
}

fn sign_in(security: &Security, body: &Bytes) -> Result<Response<Body>, Status> {
    let request: SignIn = serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("the body is not a sign-in: {error}")))?;
    let (token, credential) = security.sessions.exchange(&request.code, Instant::now()).ok_or_else(|| {
        Status::new(403, "Forbidden", "the link was used before or has expired; `knarr ui` creates another one")
    })?;
    if let (Some(saved), Some(owner)) = (security.saved_sessions.get(), security.sessions.owner(&token)) {
        saved.add(&token, &owner, &credential, UnixTime::now());
    }
    let body = json!({"token": token, "expiresInSeconds": SESSION_LIFETIME.as_secs()});
    Ok(response::value(&body, 200, &Format::JSON))
}

/// The sender of a request that came with the token of a session: the credentials that the session stands for take the
/// place of the token, as the sender or in the header.
pub fn resolve_session(security: &Security, parts: &mut Parts) -> Option<Sender> {
    let may_be_session = parts.headers.contains_key(SEC_WEBSOCKET_PROTOCOL)
        || parts.headers.get(AUTHORIZATION).is_some_and(|value| memmem(value.as_bytes(), TOKEN_PREFIX.as_bytes()));
    if !may_be_session {
        return None;
    }
    let token = bearer(&parts.headers).ok().flatten()?;
    let restored = || security.saved_sessions.get()?.restore(&security.sessions, &token, UnixTime::now());
    let credential = security.sessions.credential(&token, Instant::now()).or_else(restored)?;
    parts.extensions.insert(SessionToken(token));
    forward::sender(credential, &mut parts.headers, UnixTime::now())
}

fn memmem(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

/// Handles a request of a signed-in user below `/ui/`.
pub async fn serve(server: &Arc<ApiServer>, request: &AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
    let path = request.parts.uri.path();
    match (&request.parts.method, path.strip_prefix("/ui/").unwrap_or_default()) {
        // A session cannot prolong itself.
        (&Method::POST, "link") if request.parts.extensions.get::<SessionToken>().is_some() => Err(Status::new(
            403,
            "Forbidden",
            "a session creates no links: use the credentials that it was created with",
        )),
        (&Method::POST, "link") => Ok(create_link(server, request)),
        (&Method::DELETE, "session") => {
            if let Some(token) = request.parts.extensions.get::<SessionToken>() {
                server.security.sessions.end(&token.0);
                server.security.saved_sessions.get().inspect(|saved| saved.remove(&token.0));
            }
            Ok(response::value(&json!({}), 200, &Format::JSON))
        }
        (&Method::GET, "problems") => {
            let found = problems::find(server, request.user, request.query).await?;
            Ok(response::value(&found, 200, &Format::JSON))
        }
        (&Method::GET, "requests") => {
            let found = requests::find(server, request.user, request.query).await?;
            Ok(response::value(&found, 200, &Format::JSON))
        }
        (&Method::POST, "forward") => forward::create(server, request).await,
        _ => Ok(response::page_not_found()),
    }
}

/// The token of the session that a request came with, for ending it.
#[derive(Clone)]
pub struct SessionToken(pub String);

/// Whether a path belongs to signed-in users, whoever they are: it gives them nothing that they cannot do otherwise.
pub fn is_open_to(user: &User, path: &str) -> bool {
    matches!(path, "/ui/link" | "/ui/session" | "/ui/problems" | "/ui/requests" | "/ui/forward")
        && user.name != ANONYMOUS
}

fn create_link(server: &ApiServer, request: &AuthorizedRequest<'_>) -> Response<Body> {
    let headers = &request.parts.headers;
    let impersonated = || Arc::new(impersonation_headers(headers));
    let connection = request.parts.extensions.get::<Arc<ClientConnection>>();
    let credential = match (bearer(headers), connection) {
        (Ok(Some(token)), _) => Credential::Token(token.into(), impersonated()),
        (_, Some(connection)) if !connection.is_front_proxy() => {
            Credential::Certificate(connection.clone(), impersonated())
        }
        _ => Credential::User(Arc::new(request.user.clone())),
    };
    let code = server.security.sessions.create_code(&request.user.name, credential, Instant::now());
    response::value(&json!({"code": code, "expiresInSeconds": CODE_LIFETIME.as_secs()}), 200, &Format::JSON)
}
