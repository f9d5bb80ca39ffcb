//! The end of a request for a resource: its warnings and annotations go with the response.

use http::Response;
use knarr_api::status::Status;

use super::{Body, HandlerResponse, negotiated_failure};
use crate::request::AuditAnnotations;
use crate::resource_request::ResourceRequest;

impl ResourceRequest<'_> {
    /// The response with the warnings and annotations of the request; a refusal carries them too.
    pub fn respond(self, response: Result<Response<Body>, Status>) -> HandlerResponse {
        let mut response = response.unwrap_or_else(|status| negotiated_failure(self.headers, self.query, &status));
        let notes = self.annotations.into_inner();
        if !notes.is_empty() {
            response.extensions_mut().insert(AuditAnnotations(notes));
        }
        HandlerResponse { response, warnings: self.warnings.into_inner() }
    }
}
