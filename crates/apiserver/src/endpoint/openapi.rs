//! Serves the OpenAPI documents.

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use knarr_api::openapi::{V2_PROTOBUF, V3_PROTOBUF};
use knarr_api::status::Status;

use crate::authorized_request::AuthorizedRequest;
use crate::documents::openapi::CompressedDocument;
use crate::response::{self, Body};
use crate::state::ApiServer;

/// The content type of the index, as Kubernetes sends it.
const INDEX_TYPE: &str = "text/plain; charset=utf-8";

/// Handles `/openapi/v2` and `/openapi/v3…`.
pub fn serve(server: &ApiServer, request: &AuthorizedRequest<'_>, parts: &[&str]) -> Result<Response<Body>, Status> {
    let headers = &request.parts.headers;
    let kinds = server.backend.kinds.load_full();
    let (path, protobuf) = match parts {
        ["openapi", "v2"] => ("v2".to_owned(), prefers_protobuf(headers, V2_PROTOBUF)),
        ["openapi", "v3"] => ("v3".to_owned(), Some(false)),
        ["openapi", "v3", name @ ..] => (format!("v3/{}", name.join("/")), prefers_protobuf(headers, V3_PROTOBUF)),
        _ => return Ok(response::page_not_found()),
    };
    let remotes = server.discovery.aggregation.remotes();
    if path == "v3" && !remotes.all.is_empty() {
        let index = server.discovery.documents.openapi.merged_index(&kinds, &remotes);
        return Ok(respond(headers, &index, INDEX_TYPE));
    }
    let Some(compressed) = server.discovery.documents.openapi.get(&kinds, &remotes, &path, protobuf == Some(true))
    else {
        return Ok(without_body(StatusCode::NOT_FOUND));
    };
    let Some(protobuf) = protobuf else { return Ok(without_body(StatusCode::NOT_ACCEPTABLE)) };
    let media_type = match (path.as_str(), protobuf) {
        ("v3", _) => INDEX_TYPE,
        (_, false) => "application/json",
        ("v2", true) => V2_PROTOBUF,
        (_, true) => V3_PROTOBUF,
    };
    Ok(respond(headers, &compressed, media_type))
}

/// Whether the client's first supported media type is protobuf; `None` if it accepts no supported one.
fn prefers_protobuf(headers: &HeaderMap, protobuf: &str) -> Option<bool> {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut clauses = accept.flat_map(|value| value.split(',')).map(str::trim).filter(|clause| !clause.is_empty());
    let Some(first) = clauses.next() else { return Some(false) };
    [first].into_iter().chain(clauses).find_map(|clause| {
        // Older clients write the version after an `@`.
        let clause = clause.replace('@', ".");
        match clause.split(';').next().unwrap_or_default().trim() {
            media_type if media_type == protobuf => Some(true),
            "application/json" | "application/*" | "*/*" | "*" => Some(false),
            _ => None,
        }
    })
}

fn without_body(code: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = code;
    response
}

fn respond(headers: &HeaderMap, compressed: &CompressedDocument, media_type: &'static str) -> Response<Body> {
    let is_cached = headers.get(IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == compressed.etag.as_bytes());
    let mut response = Response::new(Body::Empty);
    if is_cached {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else if accepts_gzip(headers) {
        *response.body_mut() = Body::full(compressed.bytes.clone());
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    } else {
        *response.body_mut() = Body::full(compressed.plain());
    }
    let head = response.headers_mut();
    head.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    if let Ok(tag) = HeaderValue::from_str(&compressed.etag) {
        head.insert(ETAG, tag);
    }
    head.insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    response
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| coding.trim().starts_with("gzip"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_media_types_select_protobuf() {
        for (accept, expected) in [
            ("application/com.github.proto-openapi.spec.v2.v1.0+protobuf", Some(true)),
            ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", Some(true)),
            ("application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf", Some(false)),
            ("*/*", Some(false)),
            ("text/html", None),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(prefers_protobuf(&headers, V2_PROTOBUF), expected, "{accept}");
        }
    }
}
