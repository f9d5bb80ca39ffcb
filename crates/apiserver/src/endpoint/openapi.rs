//! OpenAPI documents.

use http::Response;
use knarr_api::status::Status;

use crate::answer::{self, Body};
use crate::server::{Admitted, Server};

/// Encoded documents of the newest catalogue.
#[derive(Default)]
pub struct Cache;

/// Answers `/openapi/v2` and `/openapi/v3…`.
pub fn serve(_server: &Server, _request: &Admitted<'_>, _parts: &[&str]) -> Result<Response<Body>, Status> {
    Ok(answer::page_not_found())
}

/// What the documentation says of a field of a type.
pub fn field_description(_type_name: &str, _field: &str) -> String {
    String::new()
}
