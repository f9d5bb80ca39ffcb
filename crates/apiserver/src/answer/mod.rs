//! From what happened to what the client reads: bodies, representations and status codes.

mod body;
mod encode;
mod gzip;
pub mod table;
mod yaml;
mod yaml_text;

pub use body::Body;
pub use encode::{list, object, served_bytes, value};
pub use gzip::compress;
pub use table::{IncludeObject, Tables, is_shown_whole, partial};

use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use knarr_api::status::Status;

use crate::route::accept::Format;

/// Answers a failure.
pub fn failure(status: &Status, format: &Format) -> Response<Body> {
    let mut response = value(&status.to_value(), status.code, format);
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Answers with a text.
pub fn text(code: u16, text: impl Into<String>) -> Response<Body> {
    with_type(code, "text/plain; charset=utf-8", Body::full(text.into()))
}

/// The answer to paths that nothing serves.
pub fn page_not_found() -> Response<Body> {
    let mut response = text(404, "404 page not found\n");
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

pub fn with_type(code: u16, media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
