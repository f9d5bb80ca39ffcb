//! A panic while a request is handled fails that request and nothing else.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use knarr_api::status::Status;

use crate::audit::Panicked;
use crate::request_metrics::InFlightRequest;
use crate::response::{self, HandlerResponse};

/// Runs the handling of a request. Kubernetes responds to a panic with the same text.
pub async fn caught(
    handling: impl Future<Output = Result<HandlerResponse, Status>>,
    request: &InFlightRequest,
) -> Result<HandlerResponse, Status> {
    let guarded = AssertUnwindSafe(async {
        knarr_supervisor::fault::point_of("api-server", "request");
        handling.await
    });
    guarded.catch_unwind().await.unwrap_or_else(|panic| {
        let reason = knarr_supervisor::panic_message(&*panic);
        tracing::error!(%reason, "handling a request panicked");
        request.terminated(500);
        let text = "This request caused apiserver to panic. Look in the logs for details.\n";
        let mut response = response::text(500, text);
        response.extensions_mut().insert(Panicked(reason));
        Ok(response.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_internal_error() {
        let request = InFlightRequest::for_test();
        let panics = async {
            if true {
                panic!("broken");
            }
            Err(Status::method_not_allowed())
        };
        let handled = caught(panics, &request);
        let Ok(handled) = handled.await else { panic!("a failure instead of a response") };
        let response = handled.response;
        assert_eq!(response.status(), 500);
        let refused = caught(async { Err(Status::method_not_allowed()) }, &request).await;
        assert_eq!(refused.err().map(|status| status.code), Some(405));
    }
}
