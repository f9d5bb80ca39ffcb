//! Spans arrive at a collector; one that hangs costs one queue.

use std::convert::Infallible;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, combinators::WithTrailers};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_metrics::Family;
use knarr_supervisor::{Registry, Supervisor};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::{Configuration, Kind, Parent, TraceContext, Tracer};

/// Serves as a collector; sends what it receives.
async fn collector() -> (String, mpsc::UnboundedReceiver<ExportRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let (sender, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let sender = sender.clone();
            let service =
                hyper::service::service_fn(move |request: Request<Incoming>| respond(request, sender.clone()));
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, received)
}

type Reply = WithTrailers<Full<Bytes>, std::future::Ready<Option<Result<HeaderMap, Infallible>>>>;

async fn respond(
    request: Request<Incoming>,
    sender: mpsc::UnboundedSender<ExportRequest>,
) -> Result<Response<Reply>, Infallible> {
    assert_eq!(request.uri().path(), METHOD);
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    // A byte for the compression and four for the length come first.
    sender.send(ExportRequest::decode(&body[5..]).expect("a request")).expect("the test waits");
    let mut reply = BytesMut::new();
    reply.put_u8(0);
    reply.put_u32(0);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(reply.freeze()).with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(Response::builder().header("content-type", "application/grpc").body(body).expect("a response"))
}

fn tracer(address: &str, rate: u32, supervisor: &Supervisor) -> Tracer {
    let endpoint = Some(address.to_owned());
    let configuration = Configuration { endpoint, sampling_rate_per_million: Some(rate), ..Configuration::default() };
    Tracer::start(&configuration, "test", &[("k8s.node.name", "n1".to_owned())], supervisor).expect("a tracer")
}

fn outcome(name: &str) -> u64 {
    let mut page = String::new();
    SPANS.write(&mut page);
    let line =
        page.lines().find_map(|line| line.strip_prefix(&format!("knarr_trace_spans_total{{outcome=\"{name}\"}} ")));
    line.and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn spans_arrive_with_their_parents() {
    let (address, mut received) = collector().await;
    let supervisor = Supervisor::new(&Registry::default());
    let tracer = tracer(&address, 0, &supervisor);
    assert!(tracer.span("unsampled", Kind::Server, Parent::None).is_none());
    let parent = TraceContext { trace: 7, span: 9, is_sampled: true };
    assert!(tracer.span("linked", Kind::Server, Parent::Linked(parent)).is_none(), "a stranger does not decide");
    let mut span = tracer.span("GET /api", Kind::Server, Parent::Trusted(parent)).expect("its parent is sampled");
    span.text("url.path", "/api");
    span.number("http.response.status_code", 200);
    let child = span.child("webhook", Kind::Client).expect("a child");
    assert_eq!((child.context().trace, child.context() == span.context()), (7, false));
    drop((child, span));
    let request = received.recv().await.expect("a batch");
    let [resource] = request.resource_spans.as_slice() else { panic!("{request:?}") };
    assert!(
        resource.resource.as_ref().is_some_and(|own| own.attributes.contains(&KeyValue::text("service.name", "test")))
    );
    let spans = &resource.scope_spans[0].spans;
    assert_eq!(spans.len(), 2);
    assert_eq!((spans[1].name.as_str(), &spans[1].parent_span_id[..]), ("GET /api", &9u64.to_be_bytes()[..]));
    assert_eq!(spans[0].parent_span_id, spans[1].span_id);
    assert!(spans[1].end_time_unix_nano >= spans[0].end_time_unix_nano);
    assert!(spans[1].attributes.contains(&KeyValue::number("http.response.status_code", 200)));
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_hangs_costs_one_queue() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let supervisor = Supervisor::new(&Registry::default());
    let tracer = tracer(&address, 1_000_000, &supervisor);
    let before = outcome("dropped");
    for _ in 0..3 * QUEUE_SPANS {
        drop(tracer.span("one", Kind::Internal, Parent::None).expect("all are sampled"));
    }
    assert!(tracer.queue.spans.lock().len() <= QUEUE_SPANS);
    assert!(outcome("dropped") - before >= (2 * QUEUE_SPANS) as u64 - 1);
    let lost = outcome("lost");
    while outcome("lost") == lost {
        tokio::time::sleep(BATCH_INTERVAL).await;
    }
}
