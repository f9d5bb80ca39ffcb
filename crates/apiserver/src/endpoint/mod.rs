//! Non-resource paths: discovery, OpenAPI, health, metrics, version and component pages.

pub mod discovery;
pub mod health;
pub mod metrics;
pub mod openapi;
pub mod request_trace;
pub mod slis;
pub mod version;

use std::sync::Arc;

use http::Method;
use knarr_api::status::Status;
use serde_json::json;

use crate::authorized_request::AuthorizedRequest;
use crate::page::PageReader;
use crate::page_reader::UserReader;
use crate::response::HandlerResponse;
use crate::response::{self, Body};
use crate::route::accept::{self, Format, Offer};
use crate::state::ApiServer;

/// Handles a request for a non-resource path.
pub async fn serve(server: &Arc<ApiServer>, request: &mut AuthorizedRequest<'_>) -> Result<HandlerResponse, Status> {
    let path = request.parts.uri.path();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if !is_plain(path, &parts) {
        return Ok(response::page_not_found().into());
    }
    if let [only] = parts[..]
        && let Some(page) = server.discovery.pages.get(only)
    {
        let reader = UserReader::new(server, request.user, &request.routed.target).await;
        request.parts.extensions.insert(PageReader(Arc::new(reader)));
        return Ok(page.serve(request.parts, request.query, &request.body).await.into());
    }
    if parts.as_slice() == [knarr_tunnel::PATH.trim_start_matches('/')] {
        return crate::tunnel::accept(server, request).map(HandlerResponse::from);
    }
    let reads = matches!(request.parts.method, Method::GET | Method::HEAD);
    if !reads && only_read(&parts) {
        return Err(Status::method_not_allowed());
    }
    let response = match parts.as_slice() {
        [] => root(server),
        ["ui", ..] => return crate::ui::serve(server, request).await.map(HandlerResponse::from),
        ["version"] => {
            accept::only(&request.parts.headers, "application/json")?;
            version::serve()
        }
        ["healthz" | "livez" | "readyz", ..] if !path.ends_with('/') => {
            health::serve(server, &parts, request.query, request.user).await
        }
        ["metrics"] if request.parts.method == Method::DELETE => {
            server.telemetry.metrics.reset();
            response::text(200, "metrics reset\n")
        }
        ["debug", "api_priority_and_fairness", page] => {
            let with_details = !request.query.text("includeRequestDetails").is_empty();
            match server.backend.fairness.dump(page, with_details, request.now) {
                Some(page) => response::text(200, page),
                None => response::page_not_found(),
            }
        }
        ["metrics"] => metrics::serve(server),
        ["metrics", "slis"] => slis::serve(&server.telemetry.health),
        ["api" | "apis", ..] => return discovery::serve(server, request, &parts).map(HandlerResponse::from),
        ["openapi", ..] => return openapi::serve(server, request, &parts).map(HandlerResponse::from),
        [".well-known", "openid-configuration"] => {
            accept::only(&request.parts.headers, "application/json")?;
            let document = server.security.service_accounts.discovery();
            cached(response::value(&document, 200, &Format::JSON))
        }
        ["openid", "v1", "jwks"] => {
            accept::only(&request.parts.headers, "application/jwk-set+json")?;
            let body = serde_json::to_vec(&server.security.service_accounts.keys()).unwrap_or_default();
            cached(response::with_type(200, "application/jwk-set+json", Body::full(body)))
        }
        _ => response::page_not_found(),
    };
    Ok(response.into())
}

/// Whether a path is in the spelling that it is authorized in: authorizers compare it as it is written, so that one which
/// denies `/metrics` knows nothing of `//metrics` or `/metrics/`. Kubernetes serves discovery and the version with a slash, too.
fn is_plain(path: &str, parts: &[&str]) -> bool {
    let may_end_in_slash = matches!(parts.first(), None | Some(&("api" | "apis" | "version" | "ui")));
    !path.contains("//") && (may_end_in_slash || !path.ends_with('/'))
}

/// Whether a path accepts only GET and HEAD; others respond the same to every method.
fn only_read(parts: &[&str]) -> bool {
    matches!(
        parts,
        ["version"]
            | ["api"]
            | ["api", _]
            | ["apis", _, _]
            | [".well-known", "openid-configuration"]
            | ["openid", "v1", "jwks"]
    )
}

fn cached(mut response: http::Response<Body>) -> http::Response<Body> {
    let value = http::HeaderValue::from_static("public, max-age=3600");
    response.headers_mut().insert(http::header::CACHE_CONTROL, value);
    response
}

/// All paths.
fn root(server: &ApiServer) -> http::Response<Body> {
    let kinds = server.backend.kinds.load();
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    for group in kinds.catalogue.groups().iter().filter(|group| !group.name.is_empty()) {
        paths.push(format!("/apis/{}", group.name));
        paths.extend(group.versions.iter().map(|version| format!("/apis/{}/{}", group.name, version.name)));
    }
    paths.sort();
    response::value(&json!({ "paths": paths }), 200, &Format { pretty: true, ..Format::JSON })
}

/// The response format of a document without tables.
pub fn format_of(request: &AuthorizedRequest<'_>) -> Result<Format, Status> {
    let offer = Offer { custom: false, list: false, shapes: false };
    accept::negotiate(&request.parts.headers, request.query, offer)
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::Empty;

    use crate::request_tests::{Cluster, admin};

    /// Authorizers that deny a path see it as it is written.
    #[tokio::test]
    async fn another_spelling_of_a_path_is_another_path() {
        let cluster = Cluster::new().await;
        for (path, code) in [
            ("/metrics", 200),
            ("//metrics", 404),
            ("/metrics/", 404),
            ("/metrics//slis", 404),
            ("/debug/api_priority_and_fairness/dump_queues", 200),
            ("/debug//api_priority_and_fairness/dump_queues", 404),
            ("/openid/v1/jwks/", 404),
            ("/livez/ping", 200),
            ("//livez/ping", 404),
            ("/livez//ping", 404),
            ("/openapi/v2", 200),
            ("/openapi/v2/", 404),
            ("/openapi/v3", 200),
            ("/openapi/v3/", 404),
            ("/openapi/v3/version", 200),
            ("/openapi/v3/version/", 404),
            ("/version/", 200),
            ("/api/", 200),
            ("/", 200),
        ] {
            let request = Request::get(path).body(Empty::<bytes::Bytes>::new()).unwrap();
            let response = cluster.server().handle(request, &admin()).await;
            assert_eq!(response.status().as_u16(), code, "{path}");
        }
    }
}
