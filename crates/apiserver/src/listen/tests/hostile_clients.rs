//! Tests of slow, silent, vanished and malformed clients: each is refused or disconnected, and the next one is served.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::listening_server::{ListeningServer, SHORT_TIMEOUT, Stream, TEST_TIMEOUT, is_closed};
use crate::listen::Limits;
use crate::pki::Purpose;
use crate::request_tests::{Cluster, MAPS, admin};

#[tokio::test]
async fn a_certificate_of_the_front_proxy_authority_authenticates_no_user() {
    let listening = ListeningServer::new().await;
    let purpose = Purpose::Client { user: "kubernetes-admin".into(), group: "system:masters".into() };
    let leaf = listening.pki.front_proxy_authority.sign(&purpose, jiff::Timestamp::now()).unwrap();
    let stream = listening.connect_with(&listening.client("h2", &leaf)).await;
    let response = ListeningServer::http2_over(stream).await.send_request(listening.request("GET", MAPS, vec![])).await;
    assert_eq!(response.unwrap().status(), 401);
    listening.stop().await;
}

#[tokio::test]
async fn an_expired_certificate_is_refused_on_old_connections_and_resumed_ones() {
    let listening = ListeningServer::new().await;
    let purpose = Purpose::Client { user: "ann".into(), group: "system:masters".into() };
    // Certificates are valid for a year; this one for a few seconds more.
    let issued =
        jiff::Timestamp::now() - jiff::SignedDuration::from_hours(365 * 24) + jiff::SignedDuration::from_secs(3);
    let leaf = listening.pki.authority.sign(&purpose, issued).unwrap();
    let client = listening.client("h2", &leaf);
    let mut old = ListeningServer::http2_over(listening.connect_with(&client).await).await;
    let status = async |sender: &mut http2::SendRequest<Full<Bytes>>| {
        sender.send_request(listening.request("GET", MAPS, vec![])).await.unwrap().status()
    };
    assert_eq!(status(&mut old).await, 200);
    let expired = async {
        while status(&mut old).await == 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        status(&mut old).await
    };
    let on_old = tokio::time::timeout(Duration::from_secs(20), expired).await.map(|status| status.as_u16());
    let resumed = listening.connect_with(&client).await;
    assert_eq!(resumed.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    let mut resumed = ListeningServer::http2_over(resumed).await;
    let on_resumed = status(&mut resumed).await.as_u16();
    assert_eq!((on_old, on_resumed), (Ok(401), 401), "served on the old connection (by its time), or on a resumed one");
    listening.stop().await;
}

#[tokio::test]
async fn head_returns_the_headers_of_get_without_a_body() {
    let listening = ListeningServer::new().await;
    let mut sender = listening.http2().await;
    for path in [format!("{MAPS}/m"), MAPS.to_owned(), "/healthz".to_owned(), format!("{MAPS}/missing")] {
        let get = sender.send_request(listening.request("GET", &path, vec![])).await.unwrap();
        let head = sender.send_request(listening.request("HEAD", &path, vec![])).await.unwrap();
        assert_eq!(head.status(), get.status(), "{path}");
        for name in ["content-length", "content-type"] {
            assert_eq!(head.headers().get(name), get.headers().get(name), "{path}");
        }
        assert!(head.into_body().collect().await.unwrap().to_bytes().is_empty(), "{path}");
    }
    listening.stop().await;
}

#[tokio::test]
async fn silent_and_slow_clients_are_disconnected() {
    let listening = ListeningServer::new().await;
    assert!(is_closed(TcpStream::connect(listening.address).await.unwrap()).await, "no handshake");
    for protocol in ["h2", "http/1.1"] {
        assert!(is_closed(listening.connect(protocol).await).await, "nothing after the handshake");
        for start in ["P", "PRI * HTTP/2.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n", "G"] {
            let mut stream = listening.connect(protocol).await;
            stream.write_all(start.as_bytes()).await.unwrap();
            assert!(is_closed(stream).await, "{start:?} and nothing more");
        }
    }
    let (reader, mut writer) = tokio::io::split(listening.connect("http/1.1").await);
    let writing = tokio::spawn(async move {
        for byte in std::iter::repeat_n(b'x', 1_000_000) {
            if writer.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(SHORT_TIMEOUT / 10).await;
        }
    });
    assert!(is_closed(reader).await, "headers sent byte by byte");
    writing.abort();
    listening.check_alive().await;
    listening.stop().await;
}

#[tokio::test]
async fn a_connection_without_ping_replies_is_closed() {
    let listening = ListeningServer::new().await;
    let mut stream = listening.connect("h2").await;
    // A client that completes the preface and then ignores pings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    assert!(is_closed(stream).await);
    listening.check_alive().await;
    listening.stop().await;
}

#[tokio::test]
async fn a_body_that_never_arrives_times_out() {
    let cluster = Cluster::new().await;
    tokio::time::pause();
    let body = http_body_util::StreamBody::new(futures::stream::pending::<
        Result<http_body::Frame<Bytes>, std::convert::Infallible>,
    >());
    let request = Request::builder().method("POST").uri(MAPS).header("content-type", "application/json").body(body);
    let response = cluster.server().handle(request.unwrap(), &admin()).await;
    assert_eq!(response.status(), 408);
}

#[tokio::test]
async fn watches_of_vanished_clients_are_dropped() {
    let listening = ListeningServer::new().await;
    let server = listening.cluster.server().clone();
    let path = format!("{MAPS}?watch=true");
    let before = Arc::strong_count(&server);
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = listening.connect("http/1.1").await;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        streams.push(stream);
    }
    let mut sender = listening.http2().await;
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(sender.send_request(listening.request("GET", &path, vec![])).await.unwrap());
    }
    assert!(Arc::strong_count(&server) > before);
    for stream in streams {
        // Resets the connection instead of closing it.
        socket2::SockRef::from(stream.get_ref().0).set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop((watches, sender));
    let gone = async {
        while Arc::strong_count(&server) > before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, gone).await.expect("watches are still held");
    listening.check_alive().await;
    listening.stop().await;
}

#[tokio::test]
async fn headers_and_bodies_are_limited() {
    let listening = ListeningServer::new().await;
    let long =
        format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(2 * Limits::DEFAULT.head_bytes as usize));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "X-A: b\r\n".repeat(2 * Limits::DEFAULT.head_fields));
    for head in [long, many] {
        let response = listening.send(head.as_bytes()).await;
        assert!(
            response.is_empty() || response.starts_with("HTTP/1.1 431"),
            "{}",
            &response[..response.len().min(100)]
        );
    }
    let size = crate::pipeline::BODY_LIMIT + 1;
    let mut large =
        format!("POST {MAPS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n").into_bytes();
    large.resize(large.len() + size, b' ');
    let response = listening.send(&large).await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 413"), "{}", &response[..response.len().min(100)]);
    let mut sender = listening.http2().await;
    let response = sender.send_request(listening.request("POST", MAPS, vec![b' '; size])).await.unwrap();
    assert_eq!(response.status(), 413);
    let status: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(status["reason"], "RequestEntityTooLarge");
    let mut request = listening.request("GET", MAPS, vec![]);
    for index in 0..64 {
        let name = http::HeaderName::from_bytes(format!("x-{index}").as_bytes()).unwrap();
        request.headers_mut().insert(name, http::HeaderValue::from_str(&"x".repeat(8 * 1024)).unwrap());
    }
    let response = listening.http2().await.send_request(request).await;
    assert!(response.is_err() || response.is_ok_and(|response| response.status() == 431));
    listening.check_alive().await;
    listening.stop().await;
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let listening = ListeningServer::new().await;
    for bytes in [
        &b"\0\0\0\0\0\0\0\0\0\0\0\0"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    ] {
        let response = listening.send(bytes).await;
        let refused = response.starts_with("HTTP/1.1 4") || !response.starts_with("HTTP/1.1");
        assert!(refused, "{:?}: {response}", String::from_utf8_lossy(bytes));
    }
    // A plain request instead of a TLS handshake.
    let mut plain = TcpStream::connect(listening.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(is_closed(plain).await);
    listening.check_alive().await;
    listening.stop().await;
}

/// CVE-2023-32187: names that clients ask for change nothing in the certificate.
#[tokio::test]
async fn names_that_clients_ask_for_are_not_certified() {
    let listening = ListeningServer::new().await;
    let config = listening.client("h2", &listening.pki.admin(jiff::Timestamp::now()).unwrap());
    let served = async |name: &str| {
        let stream = TcpStream::connect(listening.address).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::clone(&config)).connect(name, stream).await
    };
    let certificate = |stream: &Stream| stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let before = certificate(&served("localhost").await.unwrap());
    for index in 0..50 {
        assert!(served(&format!("name-{index}.example")).await.is_err());
    }
    assert_eq!(certificate(&served("localhost").await.unwrap()), before);
    listening.stop().await;
}

/// Who signs in to the page with a certificate stays signed in as long as it is valid.
#[tokio::test]
async fn a_session_stands_for_the_certificate_of_its_connection() {
    let server = ListeningServer::new().await;
    let mut client = server.http2().await;
    let response = client.send_request(server.request("POST", "/ui/link", vec![])).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let link: Value = serde_json::from_slice(&body).unwrap();
    let sessions = &server.cluster.server().security.sessions;
    let session = sessions.exchange(link["code"].as_str().unwrap(), std::time::Instant::now());
    assert!(matches!(session, Some((_, crate::authenticate::Credential::Certificate(..)))));
    drop(client);
    server.stop().await;
}
