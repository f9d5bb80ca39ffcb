//! Sends traces to an OpenTelemetry collector over HTTP.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends traces to the collector at an address such as `http://127.0.0.1:4318`.
pub async fn send(collector: &Uri, traces: &Value) -> anyhow::Result<()> {
    if collector.scheme_str() != Some("http") {
        bail!("--otlp is {collector}, which is not of the form http://HOST:4318");
    }
    let target = format!("{}/v1/traces", collector.to_string().trim_end_matches('/'));
    let body = Full::new(Bytes::from(serde_json::to_vec(traces)?));
    let request = Request::post(&target).header(http::header::CONTENT_TYPE, "application/json").body(body)?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let pending = tokio::time::timeout(TIMEOUT, client.request(request));
    let response = pending.await.with_context(|| format!("{target} did not respond in time"))?;
    let status = response.with_context(|| format!("cannot reach {target}"))?.status();
    if !status.is_success() {
        bail!("{target} responded with {status}");
    }
    Ok(())
}
