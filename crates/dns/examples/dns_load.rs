//! The DNS server with a synthetic cluster, for measurements with dnsperf:
//! `dns_load ADDRESS SERVICES [QUERIES-FILE]` writes queries for dnsperf and serves until it is stopped. One Service in a
//! hundred changes every second.

use std::convert::Infallible;
use std::io::Write;
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
    let mut arguments = std::env::args().skip(1);
    let listen: SocketAddr = arguments.next().and_then(|text| text.parse().ok()).expect("an address");
    let count: u32 = arguments.next().and_then(|text| text.parse().ok()).expect("a number of services");
    if let Some(path) = arguments.next() {
        let mut file = std::fs::File::create(path).expect("a file for queries");
        for index in 0..count {
            let name = format!("s{index}.n{}.svc.cluster.local", index % 10);
            writeln!(file, "{name} A\n{name} AAAA\nh{name} A\n{name}.n0.svc.cluster.local A")
                .expect("room for queries");
        }
    }
    let client = Client::new(
        tower::service_fn(
            move |request: http::Request<Body>| async move { Ok::<_, Infallible>(response(&request, count)) },
        ),
        "default",
    );
    let settings = knarr_dns::Settings {
        listen: vec![listen],
        domain: "cluster.local".into(),
        forwarders: vec![knarr_dns::Upstream(SocketAddr::from(([127, 0, 0, 1], 1)))],
        stub_domains: vec![],
    };
    knarr_dns::run(Informers::new(client), settings).await.expect("an address that is free");
}

fn service(index: u32, version: u32) -> Value {
    let address = format!("10.{}.{}.{}", 96 + index / 65_536, index / 256 % 256, index % 256);
    json!({"metadata": {"name": format!("s{index}"), "namespace": format!("n{}", index % 10), "uid": index.to_string(),
        "resourceVersion": version.to_string()},
        "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [{"name": "http", "port": 80 + version % 2}]}})
}

fn response(
    request: &http::Request<Body>,
    count: u32,
) -> http::Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>> {
    let is_services = request.uri().path() == "/api/v1/services";
    let body = if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
        let events = futures::stream::unfold(2, move |version| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let changed = (0..count / 100).map(|index| {
                let object = service(index * 100, version);
                format!("{}\n", json!({"type": "MODIFIED", "object": object}))
            });
            let text: String = if is_services { changed.collect() } else { String::new() };
            Some((Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(text))), version + 1))
        });
        StreamBody::new(events.boxed()).boxed_unsync()
    } else {
        let items: Vec<Value> = if is_services { (0..count).map(|index| service(index, 1)).collect() } else { vec![] };
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        Full::new(Bytes::from(list.to_string())).boxed_unsync()
    };
    http::Response::new(body)
}
