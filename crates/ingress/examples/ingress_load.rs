//! The ingress controller with synthetic pods, for measurements with wrk: `ingress_load HTTP HTTPS POD...` routes everything to
//! the pods until it is stopped. With `--churn` before the addresses, pods become unready in turns.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Full, StreamBody};
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_client::kube::client::Body;
use serde_json::{Value, json};

#[tokio::main]
async fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let churns = arguments.first().is_some_and(|first| first == "--churn");
    if churns {
        arguments.remove(0);
    }
    let addresses: Vec<SocketAddr> = arguments.iter().map(|text| text.parse().expect("an address")).collect();
    let [http, https, pods @ ..] = addresses.as_slice() else { panic!("HTTP HTTPS POD...") };
    let pods: &'static [SocketAddr] = Box::leak(pods.to_vec().into_boxed_slice());
    let service =
        move |request: http::Request<Body>| async move { Ok::<_, Infallible>(response(&request, pods, churns)) };
    let client = Client::new(tower::service_fn(service), "default");
    let addresses = knarr_ingress::Addresses { http: vec![*http], https: vec![*https] };
    let listeners = addresses.bind().expect("addresses that are free");
    let (informers, timeouts) = (Informers::new(client.clone()), knarr_ingress::Timeouts::default());
    // The pods and clients of a measurement are on this host.
    let limits =
        knarr_ingress::Limits { connections_of_client: 16_384, allows_loopback_pods: true, ..Default::default() };
    knarr_ingress::run(informers, client, "here".into(), listeners, timeouts, limits).await.expect("a certificate");
}

fn slice(pods: &[SocketAddr], unready: Option<usize>, version: usize) -> Value {
    let endpoints: Vec<Value> = pods
        .iter()
        .enumerate()
        .map(|(index, pod)| json!({"addresses": [pod.ip()], "conditions": {"ready": Some(index) != unready}}))
        .collect();
    json!({"metadata": {"name": "s", "namespace": "n", "uid": "1", "resourceVersion": version.to_string(),
        "labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": pods.first().map_or(80, SocketAddr::port)}]})
}

fn response(
    request: &http::Request<Body>,
    pods: &'static [SocketAddr],
    churns: bool,
) -> http::Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>> {
    let is_slices = request.uri().path().ends_with("/endpointslices");
    let body = if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
        let events = futures::stream::unfold(2, move |version: usize| async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let is_changed = is_slices && churns;
            let object = slice(pods, Some(version % pods.len().max(1)), version);
            let text =
                if is_changed { format!("{}\n", json!({"type": "MODIFIED", "object": object})) } else { String::new() };
            Some((Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(text))), version + 1))
        });
        StreamBody::new(events.boxed()).boxed_unsync()
    } else {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        let items = match request.uri().path().rsplit('/').next() {
            Some("ingresses") => json!([{"metadata": {"name": "i", "namespace": "n", "uid": "1",
                "annotations": {"kubernetes.io/ingress.class": "knarr"}},
                "spec": {"rules": [{"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]}}]),
            Some("services") => json!([{"metadata": {"name": "s", "namespace": "n", "uid": "1"},
                "spec": {"ports": [{"name": "http", "port": 80}]}}]),
            Some("endpointslices") => json!([slice(pods, None, 1)]),
            _ => json!([]),
        };
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        Full::new(Bytes::from(list.to_string())).boxed_unsync()
    };
    http::Response::new(body)
}
