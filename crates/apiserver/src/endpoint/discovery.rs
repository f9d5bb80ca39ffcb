//! Serves the discovery documents.

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use knarr_api::catalogue::Catalogue;
use knarr_api::discovery;
use knarr_api::status::Status;
use serde_json::Value;

use crate::aggregate::discovery::{merge_aggregated, merge_group, merge_group_list};
use crate::authorized_request::AuthorizedRequest;
use crate::response::{self, Body};
use crate::route::accept::{self, Encoding};
use crate::state::ApiServer;

/// The only supported version of aggregated discovery.
const AGGREGATED_VERSION: &str = "v2";

/// Handles `/api…` and `/apis…` paths that name no resource.
pub fn serve(server: &ApiServer, request: &AuthorizedRequest<'_>, parts: &[&str]) -> Result<Response<Body>, Status> {
    let catalogue = server.backend.kinds.load().catalogue.clone();
    let remotes = server.discovery.aggregation.remotes();
    let aggregated = if parts.len() == 1 { aggregated_encoding(&request.parts.headers) } else { None };
    let document = match (parts, aggregated) {
        (["api"], Some(_)) => Some(discovery::aggregated_core(&catalogue, AGGREGATED_VERSION)),
        (["apis"], Some(_)) => {
            let mut document = discovery::aggregated_groups(&catalogue, AGGREGATED_VERSION);
            merge_aggregated(&mut document, &catalogue, &remotes);
            Some(document)
        }
        (["api"], None) => Some(discovery::api_versions(&catalogue, &server.discovery.documents.address)),
        (["apis"], None) => {
            let mut document = discovery::group_list(&catalogue);
            merge_group_list(&mut document, &catalogue, &remotes);
            Some(document)
        }
        (["api", version], _) => discovery::resource_list(&catalogue, "", version),
        (["apis", group], _) => merge_group(discovery::group(&catalogue, group), group, &catalogue, &remotes),
        (["apis", group, version], _) => discovery::resource_list(&catalogue, group, version),
        _ => None,
    };
    let Some(document) = document else {
        // Below an existing group, the path names an unknown resource.
        return match parts {
            ["api", _] => Err(Status::no_such_resource()),
            ["apis", group, _] if catalogue.group(group).is_some() => Err(Status::no_such_resource()),
            _ => Ok(response::page_not_found()),
        };
    };
    match aggregated {
        Some(encoding) => aggregated_response(server, request, &catalogue, parts[0], encoding, &document),
        None => {
            let format = match parts {
                ["apis"] | ["apis", _] => super::format_of(request).map_err(|_| accept::none_of_three())?,
                _ => super::format_of(request)?,
            };
            let mut response = response::value(&document, 200, &format);
            response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
            Ok(response)
        }
    }
}

/// The encoding of aggregated discovery, if the client prefers it.
fn aggregated_encoding(headers: &HeaderMap) -> Option<Encoding> {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for clause in accept.flat_map(|value| value.split(',')) {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<&str> = parts.collect();
        let aggregated = ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"];
        if aggregated.iter().all(|parameter| parameters.contains(parameter)) {
            match media_type {
                accept::JSON => return Some(Encoding::Json),
                accept::PROTOBUF => return Some(Encoding::Protobuf),
                _ => {}
            }
        }
        if matches!(media_type, accept::JSON | accept::YAML | accept::PROTOBUF | "*/*" | "application/*")
            && parameters.iter().all(|p| p.starts_with("q="))
        {
            return None;
        }
    }
    None
}

fn aggregated_response(
    server: &ApiServer,
    request: &AuthorizedRequest<'_>,
    catalogue: &Catalogue,
    root: &str,
    encoding: Encoding,
    document: &Value,
) -> Result<Response<Body>, Status> {
    let generation = server.discovery.aggregation.remotes().generation;
    let name = format!("{root} {encoding:?} {generation}");
    let encoded = server.discovery.documents.discovery.get(catalogue, &name, encoding, document)?;
    let cached = request.parts.headers.get(IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == encoded.etag.as_bytes());
    let mut response = response::with_type(200, accept::JSON, Body::full(encoded.bytes));
    if cached {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = Body::Empty;
    }
    let headers = response.headers_mut();
    let media_type = format!(
        "{};g=apidiscovery.k8s.io;v={AGGREGATED_VERSION};as=APIGroupDiscoveryList",
        if encoding == Encoding::Protobuf { accept::PROTOBUF } else { accept::JSON }
    );
    if let (Ok(media_type), Ok(etag)) = (HeaderValue::from_str(&media_type), HeaderValue::from_str(&encoded.etag)) {
        headers.insert(CONTENT_TYPE, media_type);
        headers.insert(ETAG, etag);
    }
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    Ok(response)
}
