//! The whole server on loopback: queries over UDP and TCP, and an upstream resolver in the test.

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

const TIMEOUT: Duration = Duration::from_secs(5);

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
    let response = move |request: http::Request<Body>| {
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
    tokio::spawn(knarr_dns::run(Informers::new(Client::new(tower::service_fn(response), "default")), settings));
    listen
}

/// Retries until there is a response: the server needs time to start.
fn ask(server: SocketAddr, question: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let mut response = [0; 4096];
    loop {
        assert!(Instant::now() < deadline, "no response");
        socket.send_to(question, server).unwrap();
        if let Ok(length) = socket.recv(&mut response) {
            assert_eq!(response[..2], question[..2]);
            return response[..length].to_vec();
        }
    }
}

fn query_over_tcp(server: SocketAddr, question: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&u16::try_from(question.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(question).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut response = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut response).unwrap();
    response
}

/// A client that opens as many connections as it can does not block other clients.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_one_client_do_not_block_others() {
    let (forwarder, _) = upstream();
    let server = start(forwarder).await;
    tokio::task::spawn_blocking(move || {
        ask(server, &query("web.n.svc.cluster.local", A));
        let hostile = std::net::Ipv4Addr::new(127, 9, 9, 9);
        let connect = || {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from((hostile, 0)).into()).unwrap();
            socket.connect(&server.into()).unwrap();
            TcpStream::from(socket)
        };
        // More than one client gets, and few enough that idle connections stay for ten seconds.
        let mut held: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
        let last = held.last_mut().unwrap();
        last.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
        let refused = last.read(&mut [0]);
        let is_waiting = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        };
        assert!(!refused.as_ref().is_err_and(is_waiting), "one too many of a client is closed: {refused:?}");
        held.extend((0..1000).map(|_| connect()));
        let started = Instant::now();
        let response = query_over_tcp(server, &query("web.n.svc.cluster.local", A));
        assert!(response.ends_with(&[10, 96, 0, 1]));
        assert!(started.elapsed() < Duration::from_secs(2), "it took {:?}", started.elapsed());
    })
    .await
    .unwrap();
}

/// A client whose queries nobody answers does not keep the names of the world from other clients.
#[tokio::test(flavor = "multi_thread")]
async fn unanswered_queries_of_one_client_do_not_block_others() {
    let (forwarder, _) = upstream();
    let server = start(forwarder).await;
    tokio::task::spawn_blocking(move || {
        let own = query("web.n.svc.cluster.local", A);
        ask(server, &own);
        let hostile = UdpSocket::bind("127.9.9.9:0").unwrap();
        hostile.set_read_timeout(Some(TIMEOUT)).unwrap();
        for number in 0..3000 {
            hostile.send_to(&query(&format!("silent{number}.example"), A), server).unwrap();
            // Datagrams of one client are handled in order, and its buffer must not overflow.
            if number % 100 == 99 {
                hostile.send_to(&own, server).unwrap();
                hostile.recv(&mut [0; 512]).unwrap();
            }
        }
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Shorter than the timeout of the queries in flight.
        other.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
        other.send_to(&query("elsewhere.example", A), server).unwrap();
        let mut response = [0; 512];
        let length = other.recv(&mut response).expect("a response while the other's queries wait");
        assert!(response[..length].ends_with(&[192, 0, 2, 1]));
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_are_resolved() {
    let (forwarder, asked) = upstream();
    let server = start(forwarder).await;
    tokio::task::spawn_blocking(move || {
        let response = ask(server, &query("web.n.svc.cluster.local", A));
        assert_eq!((response[3] & 15, response[7]), (0, 1));
        assert!(response.ends_with(&[10, 96, 0, 1]));
        let denied = ask(server, &query("nobody.n.svc.cluster.local", A));
        assert_eq!((denied[3] & 15, denied[9]), (3, 1), "a denial carries the zone's SOA");
        let cut = ask(server, &query("many.n.svc.cluster.local", A));
        assert!(cut[2] & 2 != 0 && cut.len() <= 512, "too long for UDP");
        let whole = query_over_tcp(server, &query("many.n.svc.cluster.local", A));
        assert_eq!((whole[2] & 2, whole[7]), (0, 100));
        assert_eq!(asked.lock().unwrap().len(), 0, "names of the cluster stay in the cluster");
        for _ in 0..3 {
            let response = ask(server, &query("elsewhere.example", A));
            assert!(response.ends_with(&[192, 0, 2, 1]));
        }
        assert_eq!(asked.lock().unwrap().len(), 1, "answers are remembered");
        for (name, kind) in [("cluster.local", 252), ("n.svc.cluster.local", 251), ("elsewhere.example", 252)] {
            assert_eq!(ask(server, &query(name, kind))[3] & 15, 5, "no copies of {name}");
            assert_eq!(query_over_tcp(server, &query(name, kind))[3] & 15, 5, "no copies of {name}");
        }
        let alias = ask(server, &query("away.n.svc.cluster.local", A));
        assert_eq!((alias[3] & 15, alias[7]), (0, 2), "the alias and what it leads to");
        assert!(alias.ends_with(&[192, 0, 2, 1]));
    })
    .await
    .unwrap();
}
