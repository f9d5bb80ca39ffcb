//! Watches: the changes of a resource, in order, as one long response.

mod events;
mod initial;
mod metrics;
mod stream;
pub mod websocket;

pub use metrics::FAMILIES;

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use knarr_api::selector::FieldRequirement;
use knarr_api::status::Status;
use rand::Rng;

use crate::authorized_request::AuthorizedRequest;
use crate::kinds::Resource;
use crate::resource_request::Backend;
use crate::response::HandlerResponse;
use crate::response::{Body, IncludeObject, with_type};
use crate::route::accept::{Encoding, Format};
use crate::route::options::ListOptions;
use crate::selection::Selection;
use events::Events;
use metrics::MeasuredWatch;
use stream::{Start, Stream};

/// Handles a watch.
pub async fn serve(
    backend: &Arc<Backend>,
    resource: &Arc<Resource>,
    request: &mut AuthorizedRequest<'_>,
    format: &Format,
) -> Result<HandlerResponse, Status> {
    let target = &request.routed.target;
    let options = ListOptions::parse(request.query, true)?;
    let mut selection = Selection::parse(resource, &options.label_selector, &options.field_selector)?;
    if request.routed.named {
        // The old form of a watch of one object names it in the path, and was authorized for that name. As a requirement of
        // its own: as a part of the text, the client's own requirements could hide it.
        let (field, value) = ("metadata.name".to_owned(), target.name.clone());
        selection.fields.terms.push(FieldRequirement { field, value, negated: false });
    }
    let format = match format.encoding {
        Encoding::Yaml => return Err(not_a_stream()),
        _ => Format { pretty: false, ..*format },
    };
    let include = IncludeObject::of(&format, request.query)?;
    let events = Events::new(resource.clone(), selection, format, include);
    let start = Start {
        namespace: target.namespace.clone(),
        revision: options.resource_version,
        initial: options.send_initial_events,
        bookmarks: options.bookmarks,
        lifetime: lifetime(options.timeout, backend.behaviour.requests.min_watch),
        permit: request.permit.take(),
        counted: backend.fairness.watches().count(target),
        measured: MeasuredWatch::start(resource, target),
    };
    let stream = Stream::open(backend.clone(), events, start).await;
    if websocket::is_requested(&request.parts.headers) {
        return websocket::serve(request.parts, stream, format.encoding == Encoding::Protobuf)
            .map(HandlerResponse::from);
    }
    let mut response = with_type(200, "application/json", Body::stream(stream.into_chunks()));
    if format.encoding == Encoding::Protobuf {
        let media_type = HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch");
        response.headers_mut().insert(CONTENT_TYPE, media_type);
    }
    Ok(response.into())
}

/// Watches end at different times, so that not all clients come back at once.
fn lifetime(timeout: Option<i64>, min: Duration) -> Duration {
    match timeout {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds as u64),
        _ => min.mul_f64(rand::rng().random_range(1.0..2.0)),
    }
}

fn not_a_stream() -> Status {
    let text = "only the following media types are accepted: application/json;stream=watch, \
                application/vnd.kubernetes.protobuf;stream=watch";
    Status::new(406, "NotAcceptable", text)
}
