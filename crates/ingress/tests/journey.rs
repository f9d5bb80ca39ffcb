//! Requests through the ingress controller to pods, all on loopback, with a stand-in for the API.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_client::kube::client::Body;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(5);

/// A pod that says its name and the whole head of each request, and echoes after an upgrade.
fn pod(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, name));
        }
    });
    address
}

fn serve(mut stream: TcpStream, name: &str) {
    let mut read = Vec::new();
    let mut part = [0; 4096];
    loop {
        while !read.windows(4).any(|window| window == b"\r\n\r\n") {
            match stream.read(&mut part) {
                Ok(length) if length > 0 => read.extend_from_slice(&part[..length]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&read).to_ascii_lowercase();
        read.clear();
        if head.contains("upgrade: websocket") {
            let _ = stream
                .write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
            while let Ok(length) = stream.read(&mut part) {
                if length == 0 || stream.write_all(&part[..length]).is_err() {
                    return;
                }
            }
        }
        let body = format!("{name}\n{head}");
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    }
}

/// An address where nobody listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn slice(service: &str, pods: &[SocketAddr]) -> Vec<Value> {
    // Pods of one machine differ in their port, so each has a slice of its own.
    let one = |(index, pod): (usize, &SocketAddr)| {
        json!({"metadata": {"name": format!("{service}-{index}"), "namespace": "n", "uid": format!("{service}{index}"),
            "labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
            "endpoints": [{"addresses": [pod.ip()], "conditions": {"ready": true}}], "ports": [{"name": "", "port": pod.port()}]})
    };
    pods.iter().enumerate().map(one).collect()
}

struct Cluster {
    http: SocketAddr,
    https: SocketAddr,
    certificate: rustls_pki_types::CertificateDer<'static>,
}

/// The controller with three services: `web` has a pod that is gone and one that lives, `api` one pod, `empty` none.
async fn start() -> Cluster {
    let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let path = |path: &str, service: &str| json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": service, "port": {"number": 80}}}});
    let service = |name: &str| json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"ports": [{"port": 80}]}});
    let secret = json!({"metadata": {"name": "tls", "namespace": "n", "uid": "t"}, "type": "kubernetes.io/tls",
        "data": {"tls.crt": k8s_openapi::ByteString(made.cert.pem().into_bytes()),
            "tls.key": k8s_openapi::ByteString(made.signing_key.serialize_pem().into_bytes())}});
    let ingress = json!({"metadata": {"name": "i", "namespace": "n", "uid": "i"}, "spec": {"ingressClassName": "knarr",
        "rules": [{"host": "shop.example", "http": {"paths": [path("/", "web"), path("/api", "api"), path("/empty", "empty")]}}],
        "tls": [{"hosts": ["shop.example"], "secretName": "tls"}]}});
    let class = json!({"metadata": {"name": "knarr", "uid": "c"}, "spec": {"controller": knarr_ingress::CONTROLLER}});
    let mut slices = slice("web", &[nobody(), pod("web")]);
    slices.extend(slice("api", &[pod("api")]));
    let objects = Arc::new(json!({"ingresses": [ingress], "ingressclasses": [class], "secrets": [secret],
        "services": [service("web"), service("api"), service("empty")], "endpointslices": slices}));
    let answer = move |request: http::Request<Body>| {
        let objects = Arc::clone(&objects);
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let kind = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            if is_watch {
                // Nothing changes.
                std::future::pending::<()>().await;
            }
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": objects[kind.as_str()]});
            Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(list.to_string()))))
        }
    };
    let client = Client::new(tower::service_fn(answer), "default");
    let (http, https) = (nobody(), nobody());
    let settings =
        knarr_ingress::Settings { http: vec![http], https: vec![https], publish: vec![], timeouts: Default::default() };
    tokio::spawn(knarr_ingress::run(Informers::new(client.clone()), client, settings));
    let deadline = Instant::now() + PATIENCE;
    while tokio::net::TcpStream::connect(http).await.is_err() {
        assert!(Instant::now() < deadline, "the controller never listens");
        tokio::task::yield_now().await;
    }
    Cluster { http, https, certificate: made.cert.der().clone() }
}

async fn ask(address: SocketAddr, request: String) -> String {
    tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
    .await
    .unwrap()
}

fn get(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: 9.9.9.9\r\nConnection: close\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_their_pods() {
    let cluster = start().await;
    for (host, path, status, pod) in [
        ("shop.example", "/api/x", "200", "api\n"),
        ("shop.example:80", "/", "200", "web\n"),
        ("shop.example", "/empty", "503", "no pod"),
        ("other.example", "/", "404", "no ingress"),
    ] {
        // Twice, so that both the living pod and the one that is gone have their turn first.
        for _ in 0..2 {
            let answer = ask(cluster.http, get(host, path)).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(pod),
                "{host}{path}: {answer}"
            );
        }
    }
    let answer = ask(cluster.http, get("shop.example", "/api/y?z=1")).await;
    for expected in
        ["get /api/y?z=1 http/1.1", "host: shop.example", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: http"]
    {
        assert!(answer.contains(expected), "{expected} in {answer}");
    }
    assert!(!answer.contains("9.9.9.9"));
    assert!(knarr_ingress::metrics().contains("knarr_ingress_requests_total{code=\"2xx\"}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn web_sockets_flow_both_ways() {
    let cluster = start().await;
    let echoed = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(cluster.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"GET /api HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        stream.write_all(b"ping").unwrap();
        let mut echoed = [0; 4];
        stream.read_exact(&mut echoed).unwrap();
        echoed
    });
    assert_eq!(&echoed.await.unwrap(), b"ping");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_over_tls_finds_its_certificate() {
    let cluster = start().await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cluster.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(cluster.https).await.unwrap();
    let name = rustls_pki_types::ServerName::try_from("shop.example").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("https://shop.example/api/two").body(Full::<Bytes>::default()).unwrap();
    let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("get /api/two http/1.1") && text.contains("x-forwarded-proto: https"), "{text}");
    assert!(text.contains("host: shop.example"), "{text}");
}
