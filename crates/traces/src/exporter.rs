//! Sends finished spans in batches. The queue is bounded, and a call has a deadline: a collector that hangs costs memory for
//! one queue, and nothing waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use knarr_metrics::{Counter, register};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::messages::{ExportRequest, ExportResponse, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, SpanData};

/// The limits of OpenTelemetry's exporters.
const QUEUE_SPANS: usize = 2048;
const BATCH_SPANS: usize = 512;
const BATCH_INTERVAL: Duration = Duration::from_secs(5);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

static SPANS: Counter = Counter::new(
    "knarr_trace_spans_total",
    "[ALPHA] Spans of traces, by what became of them: sent to the collector, dropped because the queue was full, or lost \
     because the collector did not accept them.",
    &["outcome"],
);

/// Spans that wait to be sent.
pub(crate) struct Queue {
    spans: Mutex<VecDeque<SpanData>>,
    /// Wakes the exporter when a batch is full.
    is_full: Notify,
    resource: Resource,
}

impl Queue {
    pub(crate) fn new(service: &'static str, attributes: &[(&'static str, String)]) -> Queue {
        register(&[&SPANS]);
        ["sent", "dropped", "lost"].iter().for_each(|outcome| SPANS.add(&[outcome], 0));
        let mut all = vec![KeyValue::text("service.name", service)];
        all.extend(attributes.iter().map(|(key, value)| KeyValue::text(key, value.as_str())));
        Queue { spans: Mutex::default(), is_full: Notify::new(), resource: Resource { attributes: all } }
    }

    pub(crate) fn push(&self, span: SpanData) {
        let mut spans = self.spans.lock();
        if spans.len() >= QUEUE_SPANS {
            SPANS.add(&["dropped"], 1);
            return;
        }
        spans.push_back(span);
        if spans.len() >= BATCH_SPANS {
            self.is_full.notify_one();
        }
    }

    pub(crate) fn waiting(&self) -> Vec<(String, u128)> {
        let trace = |bytes: &[u8]| bytes.try_into().map(u128::from_be_bytes).unwrap_or_default();
        self.spans.lock().iter().map(|span| (span.name.clone(), trace(&span.trace_id))).collect()
    }

    fn next_batch(&self) -> Vec<SpanData> {
        let mut spans = self.spans.lock();
        let count = spans.len().min(BATCH_SPANS);
        spans.drain(..count).collect()
    }

    fn request(&self, spans: Vec<SpanData>) -> ExportRequest {
        let scope = Some(Scope { name: "knarr".to_owned() });
        let scope_spans = vec![ScopeSpans { scope, spans }];
        ExportRequest { resource_spans: vec![ResourceSpans { resource: Some(self.resource.clone()), scope_spans }] }
    }
}

/// Sends batches when they are full, and what there is in intervals. Never returns.
pub(crate) async fn run(queue: Arc<Queue>, channel: Channel) {
    let mut failing = false;
    loop {
        // A full batch may be left over, or wakes this early.
        let _ = tokio::time::timeout(BATCH_INTERVAL, queue.is_full.notified()).await;
        loop {
            let spans = queue.next_batch();
            if spans.is_empty() {
                break;
            }
            let (count, is_full) = (spans.len() as u64, spans.len() == BATCH_SPANS);
            match tokio::time::timeout(EXPORT_TIMEOUT, export(&channel, queue.request(spans))).await {
                Ok(Ok(rejected)) => {
                    failing = false;
                    let rejected = rejected.min(count);
                    SPANS.add(&["sent"], count - rejected);
                    SPANS.add(&["lost"], rejected);
                }
                Ok(Err(error)) => lost(&mut failing, count, &error),
                Err(_) => lost(&mut failing, count, "it did not respond in time"),
            }
            if !is_full {
                break;
            }
        }
    }
}

/// Counts lost spans. Logs a warning about the first failure, and no more until a batch succeeds.
fn lost(failing: &mut bool, count: u64, reason: &str) {
    SPANS.add(&["lost"], count);
    if !std::mem::replace(failing, true) {
        tracing::warn!(reason, "the collector of traces does not accept spans; they are dropped until it does");
    }
}

/// Returns how many spans the collector rejected.
async fn export(channel: &Channel, request: ExportRequest) -> Result<u64, String> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| error.to_string())?;
    let path = PathAndQuery::from_static(METHOD);
    let codec = ProstCodec::<ExportRequest, ExportResponse>::default();
    let response = grpc.unary(tonic::Request::new(request), path, codec).await;
    let response = response.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
    let rejected = response.into_inner().partial_success.map_or(0, |partial| partial.rejected_spans);
    Ok(u64::try_from(rejected).unwrap_or(0))
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
mod tests;
