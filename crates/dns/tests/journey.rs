//! The whole server on loopback: queries over UDP and TCP, and an upstream resolver of the test's own.

mod common;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_client::kube::client::Body;
use serde_json::json;

use common::{A, free_address, query, upstream};

const PATIENCE: Duration = Duration::from_secs(5);

async fn start(forwarder: SocketAddr) -> SocketAddr {
    let endpoints: Vec<_> =
        (1..=100).map(|last| json!({"addresses": [format!("10.0.0.{last}")], "conditions": {"ready": true}})).collect();
    let objects = Arc::new(json!({
        "namespaces": [{"metadata": {"name": "n", "uid": "5"}}],
        "services": [
            {"metadata": {"name": "web", "namespace": "n", "uid": "1"}, "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]}},
            {"metadata": {"name": "many", "namespace": "n", "uid": "2"}, "spec": {"clusterIP": "None", "clusterIPs": ["None"]}},
            {"metadata": {"name": "away", "namespace": "n", "uid": "3"}, "spec": {"type": "ExternalName", "externalName": "www.example.org"}},
        ],
        "endpointslices": [{"metadata": {"name": "m", "namespace": "n", "uid": "4", "labels": {"kubernetes.io/service-name": "many"}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": []}],
    }));
    let answer = move |request: http::Request<Body>| {
        let objects = Arc::clone(&objects);
        async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                // Nothing changes.
                std::future::pending::<()>().await;
            }
            let kind = request.uri().path().rsplit('/').next().unwrap_or_default();
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": objects[kind]});
            Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(list.to_string()))))
        }
    };
    let listen = free_address();
    let settings = knarr_dns::Settings {
        listen: vec![listen],
        domain: "cluster.local".into(),
        forwarders: vec![knarr_dns::Upstream(forwarder)],
        stub_domains: vec![],
    };
    tokio::spawn(knarr_dns::run(Informers::new(Client::new(tower::service_fn(answer), "default")), settings));
    listen
}

/// Asks until there is an answer: the server needs a moment to start.
fn ask(server: SocketAddr, question: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut answer = [0; 4096];
    loop {
        assert!(Instant::now() < deadline, "no answer");
        socket.send_to(question, server).unwrap();
        if let Ok(length) = socket.recv(&mut answer) {
            assert_eq!(answer[..2], question[..2]);
            return answer[..length].to_vec();
        }
    }
}

fn ask_by_stream(server: SocketAddr, question: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&u16::try_from(question.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(question).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    answer
}

/// One client that holds all the connections it can get does not keep others from theirs.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_of_one_client_leave_room() {
    let (forwarder, _) = upstream();
    let server = start(forwarder).await;
    tokio::task::spawn_blocking(move || {
        ask(server, &query("web.n.svc.cluster.local", A));
        let hostile = std::net::Ipv4Addr::new(127, 9, 9, 9);
        let mut held = Vec::new();
        for _ in 0..1100 {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from((hostile, 0)).into()).unwrap();
            socket.connect(&server.into()).unwrap();
            held.push(socket);
        }
        let begun = Instant::now();
        let answer = ask_by_stream(server, &query("web.n.svc.cluster.local", A));
        assert!(answer.ends_with(&[10, 96, 0, 1]));
        assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_are_answered() {
    let (forwarder, asked) = upstream();
    let server = start(forwarder).await;
    tokio::task::spawn_blocking(move || {
        let answer = ask(server, &query("web.n.svc.cluster.local", A));
        assert_eq!((answer[3] & 15, answer[7]), (0, 1));
        assert!(answer.ends_with(&[10, 96, 0, 1]));
        let denied = ask(server, &query("nobody.n.svc.cluster.local", A));
        assert_eq!((denied[3] & 15, denied[9]), (3, 1), "a denial carries the zone's SOA");
        let cut = ask(server, &query("many.n.svc.cluster.local", A));
        assert!(cut[2] & 2 != 0 && cut.len() <= 512, "too long for UDP");
        let whole = ask_by_stream(server, &query("many.n.svc.cluster.local", A));
        assert_eq!((whole[2] & 2, whole[7]), (0, 100));
        assert_eq!(asked.lock().unwrap().len(), 0, "names of the cluster stay in the cluster");
        for _ in 0..3 {
            let answer = ask(server, &query("elsewhere.example", A));
            assert!(answer.ends_with(&[192, 0, 2, 1]));
        }
        assert_eq!(asked.lock().unwrap().len(), 1, "answers are remembered");
        for (name, kind) in [("cluster.local", 252), ("n.svc.cluster.local", 251), ("elsewhere.example", 252)] {
            assert_eq!(ask(server, &query(name, kind))[3] & 15, 5, "no copies of {name}");
            assert_eq!(ask_by_stream(server, &query(name, kind))[3] & 15, 5, "no copies of {name}");
        }
        let alias = ask(server, &query("away.n.svc.cluster.local", A));
        assert_eq!((alias[3] & 15, alias[7]), (0, 2), "the alias and what it leads to");
        assert!(alias.ends_with(&[192, 0, 2, 1]));
    })
    .await
    .unwrap();
}
