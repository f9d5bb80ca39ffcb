//! HTTP responses: bodies, encodings of objects and status codes.

mod body;
mod encode;
pub mod encoder_pool;
mod gzip;
mod held;
mod list;
mod measured;
mod produced;
mod protobuf_list;
mod respond;
pub mod table;
mod yaml;
mod yaml_text;

pub use body::{Body, BodyError};
pub use encode::{object, served_bytes, value, written};
pub use gzip::compress;
pub use held::hold;
pub use list::list;
pub use measured::measure;
pub use table::{IncludeObject, Tables, partial, serves_stored_metadata};

use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use knarr_api::status::Status;

use crate::route::accept::{self, Format, Offer, Shape};
use crate::route::query::Query;

/// What a handler returns: a response, and the texts of its Warning headers.
pub struct HandlerResponse {
    pub response: Response<Body>,
    pub warnings: Vec<String>,
}

impl From<Response<Body>> for HandlerResponse {
    fn from(response: Response<Body>) -> HandlerResponse {
        HandlerResponse { response, warnings: Vec::new() }
    }
}

/// A failure in the encoding that the client accepts, or in JSON.
pub(crate) fn negotiated_failure(headers: &HeaderMap, query: &Query, status: &Status) -> Response<Body> {
    let offer = Offer { custom: false, list: false, shapes: true };
    let format = accept::negotiate(headers, query, offer).unwrap_or(Format::JSON);
    failure(status, &Format { shape: Shape::Whole, ..format })
}

/// A failure as a Status object.
pub fn failure(status: &Status, format: &Format) -> Response<Body> {
    let mut response = value(&status.to_value(), status.code, format);
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A plain text.
pub fn text(code: u16, text: impl Into<String>) -> Response<Body> {
    with_type(code, "text/plain; charset=utf-8", Body::full(text.into()))
}

/// The response to a request that failed before anything was known of its format.
pub fn internal_error(parts: &http::request::Parts, error: &dyn std::fmt::Display) -> Response<Body> {
    let uri = parts.uri.path_and_query().map_or("", |uri| uri.as_str());
    let message = format!("Internal Server Error: {uri:?}: {error}\n");
    let escaped = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut response = text(500, escaped);
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// The response to paths that nothing serves.
pub fn page_not_found() -> Response<Body> {
    let mut response = text(404, "404 page not found\n");
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A response with a body of the given media type.
pub fn with_type(code: u16, media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
