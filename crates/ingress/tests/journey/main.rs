//! Requests through the ingress controller to pods, all on loopback, with a fake API.

mod cluster;
mod hostile_clients;
mod pods;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;

use cluster::{connect, start, start_with};
use pods::WAS_SHY;

const TIMEOUT: Duration = Duration::from_secs(5);

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
