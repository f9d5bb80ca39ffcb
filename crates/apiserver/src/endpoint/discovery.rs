//! Discovery documents, made once for each catalogue.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use knarr_api::catalogue::Catalogue;
use knarr_api::discovery;
use knarr_api::status::Status;
use parking_lot::Mutex;
use serde_json::Value;

use crate::aggregate::discovery::{merge_aggregated, merge_group, merge_group_list};
use crate::answer::{self, Body, served_bytes};
use crate::route::accept::Encoding;
use crate::server::{Admitted, Server};

/// Encoded documents of the newest catalogue.
#[derive(Default)]
pub struct Cache(Mutex<Option<(Catalogue, HashMap<String, Encoded>)>>);

#[derive(Clone)]
struct Encoded {
    bytes: Bytes,
    etag: Arc<str>,
}

/// Answers `/api…` and `/apis…` where they name no resource.
pub fn serve(server: &Server, request: &Admitted<'_>, parts: &[&str]) -> Result<Response<Body>, Status> {
    let catalogue = server.kinds.load().catalogue.clone();
    let aggregated = aggregated_version(&request.parts.headers);
    let format = if aggregated.is_some() { crate::route::accept::Format::JSON } else { super::format_of(request)? };
    let remotes = server.aggregation.remotes();
    let document = match (parts, aggregated) {
        (["api"], Some(version)) => Some(discovery::aggregated_core(&catalogue, version)),
        (["apis"], Some(version)) => {
            let mut document = discovery::aggregated_groups(&catalogue, version);
            merge_aggregated(&mut document, &catalogue, &remotes);
            Some(document)
        }
        (["api"], None) => Some(discovery::api_versions(&catalogue, &server.documents.address)),
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
    let Some(document) = document else { return Ok(answer::page_not_found()) };
    match aggregated.filter(|_| parts.len() == 1) {
        Some(version) => Ok(aggregated_answer(server, request, &catalogue, parts[0], version, &document)),
        None => {
            let mut response = answer::value(&document, 200, &format);
            response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
            Ok(response)
        }
    }
}

/// The version of the aggregated form, when the client prefers it.
fn aggregated_version(headers: &HeaderMap) -> Option<&'static str> {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for clause in accept.flat_map(|value| value.split(',')) {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<&str> = parts.collect();
        let has = |text: &str| parameters.contains(&text);
        if media_type == "application/json" && has("g=apidiscovery.k8s.io") && has("as=APIGroupDiscoveryList") {
            if has("v=v2") {
                return Some("v2");
            }
            if has("v=v2beta1") {
                return Some("v2beta1");
            }
        }
        if matches!(media_type, "application/json" | "*/*" | "application/*")
            && parameters.iter().all(|p| p.starts_with("q="))
        {
            return None;
        }
    }
    None
}

fn aggregated_answer(
    server: &Server,
    request: &Admitted<'_>,
    catalogue: &Catalogue,
    root: &str,
    version: &str,
    document: &Value,
) -> Response<Body> {
    let encoded = server.documents.discovery.get(
        catalogue,
        &format!("{root} {version} {}", server.aggregation.remotes().generation),
        document,
    );
    let known = request.parts.headers.get(IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == encoded.etag.as_bytes());
    let mut response = answer::with_type(200, "application/json", Body::full(encoded.bytes));
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = Body::Empty;
    }
    let headers = response.headers_mut();
    let media_type = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    if let (Ok(media_type), Ok(etag)) = (HeaderValue::from_str(&media_type), HeaderValue::from_str(&encoded.etag)) {
        headers.insert(CONTENT_TYPE, media_type);
        headers.insert(ETAG, etag);
    }
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

impl Cache {
    fn get(&self, catalogue: &Catalogue, name: &str, document: &Value) -> Encoded {
        let mut cache = self.0.lock();
        let documents = match &mut *cache {
            Some((own, documents)) if own.same(catalogue) => documents,
            other => &mut other.insert((catalogue.clone(), HashMap::new())).1,
        };
        let make = || {
            let format =
                crate::route::accept::Format { encoding: Encoding::Json, ..crate::route::accept::Format::JSON };
            let bytes = served_bytes(document, &format);
            Encoded { etag: discovery::etag(&bytes).into(), bytes: bytes.into() }
        };
        documents.entry(name.to_owned()).or_insert_with(make).clone()
    }
}
