//! How long the API takes to answer, and what it answers, for everything the node asks of it.

use std::sync::Arc;
use std::time::Instant;

use http::Request;
use hyper::body::Body as _;
use kube::Client;
use kube::client::Body;

use crate::counters::Counters;

/// The client, measured.
pub fn measured(client: Client, metrics: Arc<Counters>) -> Client {
    let namespace = client.default_namespace().to_string();
    let send = tower::service_fn(move |request: Request<Body>| {
        let (client, metrics) = (client.clone(), metrics.clone());
        async move {
            let (method, begun) = (request.method().clone(), Instant::now());
            let verb = [("verb", method.as_str())];
            if let Some(size) = request.body().size_hint().exact() {
                metrics.observe_value("rest_client_request_size_bytes", &verb, size as f64);
            }
            let answer = client.send(request).await;
            metrics.observe("rest_client_request_duration_seconds", &verb, begun.elapsed());
            let code = match &answer {
                Ok(answer) => answer.status().as_str().to_string(),
                Err(_) => "<error>".to_string(),
            };
            let labels = [("code", code.as_str()), ("method", method.as_str())];
            metrics.count("rest_client_requests_total", &labels);
            if let Some(size) = answer.as_ref().ok().and_then(|answer| answer.body().size_hint().exact()) {
                metrics.observe_value("rest_client_response_size_bytes", &verb, size as f64);
            }
            answer
        }
    });
    Client::new(send, namespace)
}
