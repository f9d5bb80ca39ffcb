//! Requests through the ingress controller to pods, all on loopback, with a fake API.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_client::kube::client::Body;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A pod that returns its name and the whole head of each request, and echoes after an upgrade.
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

static WAS_SHY: Mutex<bool> = Mutex::new(false);

/// A pod that responds in the form that the path selects.
fn shape_shifter() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_in_shape(stream));
        }
    });
    address
}

fn answer_in_shape(mut stream: TcpStream) -> Option<()> {
    let mut read = Vec::new();
    let mut part = [0; 4096];
    loop {
        let end = loop {
            if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            let length = stream.read(&mut part).ok().filter(|length| *length > 0)?;
            read.extend_from_slice(&part[..length]);
        };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let mut body: Vec<u8> = read.split_off(end);
        read.clear();
        let is_chunked = head.contains("transfer-encoding: chunked");
        while body.len() < length.unwrap_or(0) || is_chunked && !body.ends_with(b"0\r\n\r\n") {
            let length = stream.read(&mut part).ok().filter(|length| *length > 0)?;
            body.extend_from_slice(&part[..length]);
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        let response = match path {
            // Closes without a response, but only once.
            "/shape/shy" if !std::mem::replace(&mut *WAS_SHY.lock().unwrap(), true) => return None,
            "/shape/gone" => return None,
            "/shape/slow" => {
                // Until the proxy has timed out.
                let _ = stream.read(&mut part);
                return None;
            }
            "/shape/chunked" => {
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-end: 1\r\n\r\n".to_owned()
            }
            "/shape/hint" => {
                "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nreal".into()
            }
            "/shape/none" => "HTTP/1.1 204 No Content\r\n\r\n".into(),
            "/shape/long" => format!("HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n{}", "x".repeat(3_000_000)),
            "/shape/head" => "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n".into(),
            "/shape/last" => "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nlast".into(),
            "/shape/close" => "HTTP/1.1 200 OK\r\n\r\nuntil the end".into(),
            "/shape/broken" => "nonsense\r\n\r\n".into(),
            _ => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}", body.len(), String::from_utf8_lossy(&body)),
        };
        stream.write_all(response.as_bytes()).ok()?;
        if matches!(path, "/shape/last" | "/shape/close") {
            return None;
        }
    }
}

/// A pod that speaks HTTP/2 only: it echoes the request's body, then sends trailers as gRPC does.
async fn streaming_pod() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                let accepts_trailers = request.headers().get("te").is_some_and(|value| value == "trailers");
                let mut ending = http::HeaderMap::new();
                ending.insert("grpc-status", http::HeaderValue::from_static(if accepts_trailers { "0" } else { "13" }));
                let body = request.into_body().with_trailers(std::future::ready(Some(Ok(ending))));
                Ok::<_, Infallible>(
                    http::Response::builder().header("content-type", "application/grpc").body(body).unwrap(),
                )
            });
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(served.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// An unused address: the port is derived from the process id and below the ephemeral range.
fn unused_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let [_, first, second, third] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, 64 | first, second, third), PORT.fetch_add(1, Ordering::Relaxed)).into()
}

fn slice(service: &str, pods: &[SocketAddr]) -> Vec<Value> {
    // Pods on one host differ in their port, so each has its own slice.
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

async fn start() -> Cluster {
    start_with(knarr_ingress::Timeouts::default()).await
}

/// The controller with its Services: `web` has one dead and one live pod, `empty` none, the others one.
async fn start_with(timeouts: knarr_ingress::Timeouts) -> Cluster {
    let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let path = |path: &str, service: &str| json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": service, "port": {"number": 80}}}});
    let service = |name: &str| json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"ports": [{"port": 80}]}});
    let secret = json!({"metadata": {"name": "tls", "namespace": "n", "uid": "t"}, "type": "kubernetes.io/tls",
        "data": {"tls.crt": k8s_openapi::ByteString(made.cert.pem().into_bytes()),
            "tls.key": k8s_openapi::ByteString(made.signing_key.serialize_pem().into_bytes())}});
    let ingress = json!({"metadata": {"name": "i", "namespace": "n", "uid": "i"}, "spec": {"ingressClassName": "knarr",
        "rules": [{"host": "shop.example", "http": {"paths": [path("/", "web"), path("/api", "api"), path("/empty", "empty"), path("/shape", "shape"),
            path("/grpc", "grpc")]}}],
        "tls": [{"hosts": ["shop.example"], "secretName": "tls"}]}});
    let class = json!({"metadata": {"name": "knarr", "uid": "c"}, "spec": {"controller": knarr_ingress::CONTROLLER}});
    let mut slices = slice("web", &[unused_address(), pod("web")]);
    slices.extend(slice("api", &[pod("api")]));
    slices.extend(slice("shape", &[shape_shifter()]));
    slices.extend(slice("grpc", &[streaming_pod().await]));
    let mut streaming = service("grpc");
    streaming["spec"]["ports"][0]["appProtocol"] = json!("kubernetes.io/h2c");
    let objects = Arc::new(json!({"nodes": [], "ingresses": [ingress], "ingressclasses": [class], "secrets": [secret],
        "services": [service("web"), service("api"), service("empty"), service("shape"), streaming], "endpointslices": slices}));
    let response = move |request: http::Request<Body>| {
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
    let client = Client::new(tower::service_fn(response), "default");
    let (http, https) = (unused_address(), unused_address());
    let listeners = knarr_ingress::Addresses { http: vec![http], https: vec![https] }.bind().unwrap();
    let informers = Informers::new(client.clone());
    let limits = knarr_ingress::Limits { connections_of_client: 100, allows_loopback_pods: true, ..Default::default() };
    tokio::spawn(knarr_ingress::run(informers, client, "here".into(), listeners, timeouts, limits));
    Cluster { http, https, certificate: made.cert.der().clone() }
}

async fn ask(address: SocketAddr, request: String) -> String {
    tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    })
    .await
    .unwrap()
}

fn get(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: 9.9.9.9\r\nConnection: close\r\n\r\n")
}

/// Requests that two parsers may read differently reach no pod, on either path.
#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_requests_are_refused() {
    let cluster = start().await;
    let hidden = "GET /api/hidden HTTP/1.1\r\nHost: shop.example\r\n\r\n";
    for head in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "X-One: a\r\n b\r\n",
        "X-One: a\nX-Two: b\r\n",
        "Host: other.example\r\n",
    ] {
        let request = format!("POST /api HTTP/1.1\r\nHost: shop.example\r\n{head}\r\n0\r\n\r\n{hidden}");
        let response = ask(cluster.http, request).await;
        assert!(response.starts_with("HTTP/1.1 400"), "{head:?}: {response}");
        assert!(!response.contains("hidden"), "{head:?} hides a request: {response}");
    }
    let claim = "GET /api HTTP/1.1\r\nHost: shop.example\r\nForwarded: for=9.9.9.9\r\nConnection: close\r\n";
    for way in ["", "TE: trailers\r\n"] {
        let response = ask(cluster.http, format!("{claim}{way}\r\n")).await;
        assert!(response.starts_with("HTTP/1.1 200") && !response.contains("9.9.9.9"), "{way:?}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_are_disconnected() {
    let short = Duration::from_millis(300);
    let timeouts = knarr_ingress::Timeouts { head: short, idle: short, ..knarr_ingress::Timeouts::default() };
    let cluster = start_with(timeouts).await;
    for started in ["", "GET / HTTP/1.1\r\nHost: sh", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0"] {
        let address = cluster.http;
        tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TIMEOUT * 2)).unwrap();
            stream.write_all(started.as_bytes()).unwrap();
            let mut rest = Vec::new();
            // Closed in any way, but not by the test's own timeout.
            if let Err(error) = stream.read_to_end(&mut rest) {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "{started:?} holds its connection");
            }
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_cannot_hold_all_connections() {
    let cluster = start().await;
    ask(cluster.http, get("shop.example", "/api")).await;
    let address = cluster.http;
    let refused = tokio::task::spawn_blocking(move || {
        let held: Vec<TcpStream> = (0..150).map(|_| TcpStream::connect(address).unwrap()).collect();
        let is_closed = |stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            let read = (&*stream).read(&mut [0]);
            !matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        };
        let deadline = std::time::Instant::now() + TIMEOUT;
        loop {
            // Several threads accept, so any of the connections may be the ones beyond the limit.
            let closed = held.iter().filter(|stream| is_closed(stream)).count();
            if closed >= 50 || std::time::Instant::now() > deadline {
                return closed;
            }
            std::thread::yield_now();
        }
    });
    assert!(refused.await.unwrap() >= 50, "connections beyond the limit are closed");
}

/// A flood of requests that are reset at once closes the connection, and other clients are served (CVE-2023-44487).
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_resets_closes_the_connection() {
    let cluster = start().await;
    let address = cluster.http;
    let is_ended = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut reading = stream.try_clone().unwrap();
        let heard = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = reading.read_to_end(&mut bytes);
        });
        // :method GET, :scheme http, :path /, :authority shop.example (RFC 7541, appendix A).
        let mut block = vec![0x82, 0x86, 0x84, 0x41, 12];
        block.extend_from_slice(b"shop.example");
        let mut flood = Vec::new();
        for number in (1..20_001u32).step_by(2) {
            flood.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 5]);
            flood.extend_from_slice(&number.to_be_bytes());
            flood.extend_from_slice(&block);
            flood.extend_from_slice(&[0, 0, 4, 3, 0]);
            flood.extend_from_slice(&number.to_be_bytes());
            flood.extend_from_slice(&[0, 0, 0, 8]);
        }
        let sent = stream.write_all(&flood);
        let deadline = std::time::Instant::now() + TIMEOUT;
        while !heard.is_finished() && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        sent.is_err() || heard.is_finished()
    });
    assert!(is_ended.await.unwrap(), "the connection goes on");
    assert!(ask(address, get("shop.example", "/api")).await.starts_with("HTTP/1.1 200"));
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
        // Twice, so that both the live and the dead pod come first once.
        for _ in 0..2 {
            let response = ask(cluster.http, get(host, path)).await;
            assert!(
                response.starts_with(&format!("HTTP/1.1 {status}")) && response.contains(pod),
                "{host}{path}: {response}"
            );
        }
    }
    let response = ask(cluster.http, get("shop.example", "/api/y?z=1")).await;
    for expected in
        ["get /api/y?z=1 http/1.1", "host: shop.example", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: http"]
    {
        assert!(response.contains(expected), "{expected} in {response}");
    }
    assert!(!response.contains("9.9.9.9"));
    assert!(knarr_ingress::metrics().contains("knarr_ingress_requests_total{code=\"2xx\"}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_of_all_forms_pass_on_one_connection() {
    let cluster = start().await;
    let stream = tokio::net::TcpStream::connect(cluster.http).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let long_body = "y".repeat(200_000);
    for (method, path, body, status, expected) in [
        ("GET", "/shape/chunked", "", 200, "hello"),
        ("GET", "/shape/hint", "", 200, "real"),
        ("GET", "/shape/none", "", 204, ""),
        ("HEAD", "/shape/head", "", 200, ""),
        ("POST", "/shape/echo", "a body", 200, "a body"),
        ("GET", "/shape/broken", "", 502, "the pod behind this address does not respond\n"),
        ("GET", "/shape/last", "", 200, "last"),
        ("GET", "/shape/long", "", 200, &"x".repeat(3_000_000)),
        ("GET", "/nowhere", "", 200, ""),
        // Too long for the fast path: from here on, hyper serves.
        ("POST", "/shape/echo", &long_body, 200, &long_body),
        ("GET", "/shape/chunked", "", 200, "hello"),
        ("HEAD", "/shape/head", "", 200, ""),
    ] {
        let request = http::Request::builder().method(method).uri(path).header("host", "shop.example");
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let response = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), status, "{method} {path}");
        let text = tokio::time::timeout(TIMEOUT, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
        if path != "/nowhere" {
            assert!(text == expected.as_bytes(), "{method} {path}: {} bytes", text.len());
        }
        sender.ready().await.unwrap();
    }
    let ended = ask(cluster.http, "GET /shape/close HTTP/1.1\r\nHost: shop.example\r\n\r\n".into()).await;
    assert!(ended.ends_with("until the end") && ended.contains("connection: close"), "{ended}");
    let one = "GET /api/one HTTP/1.1\r\nHost: shop.example\r\n\r\n";
    let several = ask(cluster.http, format!("{one}{one}{}", get("shop.example", "/api/two"))).await;
    assert_eq!(several.matches("HTTP/1.1 200").count(), 3, "{several}");
    assert!(several.rfind("/api/one") < several.find("/api/two"), "in their order: {several}");
    let old = ask(cluster.http, "GET /shape/chunked HTTP/1.0\r\nHost: shop.example\r\n\r\n".into()).await;
    assert!(old.ends_with("\r\n\r\nhello"), "{old}");
    let two = "POST /api HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 1\r\nContent-Length: 20\r\n\r\nx";
    let wrong = ask(cluster.http, two.into()).await;
    assert!(wrong.starts_with("HTTP/1.1 400"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn web_sockets_flow_both_ways() {
    let cluster = start().await;
    let echoed = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(cluster.http).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
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

/// HTTP/2 over TLS to the ingress.
async fn connect(cluster: &Cluster) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
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
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_over_tls_selects_the_certificate() {
    let mut sender = connect(&start().await).await;
    let request = http::Request::get("https://shop.example/api/two").body(Full::<Bytes>::default()).unwrap();
    let response = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("get /api/two http/1.1") && text.contains("x-forwarded-proto: https"), "{text}");
    assert!(text.contains("host: shop.example"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_calls_pass_with_their_trailers() {
    let cluster = start().await;
    let mut sender = connect(&cluster).await;
    let request = http::Request::post("https://shop.example/grpc/call").header("te", "trailers");
    let request = request.header("content-type", "application/grpc").body(Full::from("a message")).unwrap();
    let response = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(
        (response.status().as_u16(), response.headers()["content-type"].as_bytes()),
        (200, &b"application/grpc"[..])
    );
    let body = tokio::time::timeout(TIMEOUT, response.into_body().collect()).await.unwrap().unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), "a message");
    // HTTP/1 clients reach such pods, too.
    let response = ask(cluster.http, get("shop.example", "/grpc")).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_safe_requests_are_retried_and_slow_pods_time_out() {
    let timeout =
        knarr_ingress::Timeouts { response: Duration::from_millis(300), ..knarr_ingress::Timeouts::default() };
    let cluster = start_with(timeout).await;
    let post = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
    };
    for (request, status) in [
        (get("shop.example", "/shape/shy"), "200"),
        (get("shop.example", "/shape/gone"), "502"),
        (post("/shape/gone"), "502"),
        (get("shop.example", "/shape/slow"), "504"),
        (post("/shape/slow"), "504"),
    ] {
        let response = ask(cluster.http, request.clone()).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {response}");
    }
    *WAS_SHY.lock().unwrap() = false;
    let response = ask(cluster.http, post("/shape/shy")).await;
    assert!(response.starts_with("HTTP/1.1 502"), "the pod may have done what it was asked: {response}");
}
