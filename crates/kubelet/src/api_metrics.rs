//! Metrics of the kubelet's requests to the API server: counts, durations and sizes.

use std::sync::Arc;
use std::time::Instant;

use http::Request;
use hyper::body::Body as _;
use knarr_client::ServerAddress;
use kube::Client;
use kube::client::Body;

use crate::counters::Counters;

/// Wraps the client so that each request is measured. The `host` label is empty for a server in this process.
pub fn measured(client: Client, metrics: Arc<Counters>) -> Client {
    let namespace = client.default_namespace().to_string();
    let server = ServerAddress::default();
    let send = tower::service_fn(move |mut request: Request<Body>| {
        let (client, metrics, server) = (client.clone(), metrics.clone(), server.clone());
        async move {
            let (method, started) = (request.method().clone(), Instant::now());
            let size = request.body().size_hint().exact();
            request.extensions_mut().insert(server.clone());
            let response = client.send(request).await;
            let host = ("host", server.name());
            let verb = [("verb", method.as_str()), host];
            if let Some(size) = size {
                metrics.observe_value("rest_client_request_size_bytes", &verb, size as f64);
            }
            metrics.observe("rest_client_request_duration_seconds", &verb, started.elapsed());
            let code = match &response {
                Ok(response) => response.status().as_str().to_string(),
                Err(_) => "<error>".to_string(),
            };
            let labels = [("code", code.as_str()), ("method", method.as_str()), host];
            metrics.count("rest_client_requests_total", &labels);
            if let Some(size) = response.as_ref().ok().and_then(|response| response.body().size_hint().exact()) {
                metrics.observe_value("rest_client_response_size_bytes", &verb, size as f64);
            }
            response
        }
    });
    Client::new(send, namespace)
}
