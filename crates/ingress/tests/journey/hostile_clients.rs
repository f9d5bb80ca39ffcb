//! Clients that send ambiguous requests, hold connections, read nothing or reset everything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::cluster::{connect, start, start_with};
use super::{TIMEOUT, ask, get};

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

/// A path that a pod resolves to another one, or a method that asks for a tunnel, reaches no pod, on either path.
#[tokio::test(flavor = "multi_thread")]
async fn requests_past_the_rules_are_refused() {
    let cluster = start().await;
    for way in ["", "TE: trailers\r\n"] {
        for (request, status) in [
            ("GET /api/../empty HTTP/1.1", 400),
            ("GET /api/%2e%2e/empty?x=.. HTTP/1.1", 400),
            ("GET /api/..;/empty HTTP/1.1", 400),
            ("GET http://shop.example/api/.. HTTP/1.1", 400),
            ("CONNECT shop.example:80 HTTP/1.1", 405),
            ("GET /api/a..b?x=/../y HTTP/1.1", 200),
        ] {
            let request = format!("{request}\r\nHost: shop.example\r\nConnection: close\r\n{way}\r\n");
            let response = ask(cluster.http, request.clone()).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {response}");
        }
    }
    let mut sender = connect(&cluster).await;
    let request = http::Request::get("https://shop.example/api/../empty").body(Full::<Bytes>::default()).unwrap();
    let response = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(response.status(), 400, "over HTTP/2");
    // On a connection that hyper serves already: a second host is refused, and of two ends of a body one is left.
    let first = "GET /api HTTP/1.1\r\nHost: shop.example\r\nTE: trailers\r\n\r\n";
    for (head, is_refused) in
        [("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", false), ("Host: other.example\r\n", true)]
    {
        let second = "POST /api/second HTTP/1.1\r\nHost: shop.example\r\n";
        let response = ask(cluster.http, format!("{first}{second}{head}Connection: close\r\n\r\n0\r\n\r\n")).await;
        assert_eq!(response.contains("HTTP/1.1 400"), is_refused, "{head:?}: {response}");
        assert!(!response.contains("content-length: 5\r\n"), "{head:?}: {response}");
    }
    // HTTP/2 by upgrade would be a connection to the pod without rules.
    let upgrade = "GET /api HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n\
        HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n";
    let response = ask(cluster.http, upgrade.into()).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(!response.contains("h2c") && !response.contains("http2-settings"), "{response}");
}

/// Sends a request on many connections, and waits for each one's head.
fn open_many(address: SocketAddr, count: usize, request: &str) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream
    };
    (0..count).map(open).collect()
}

fn is_served(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut response = String::new();
    // Connections beyond the limit are closed, perhaps while the request is sent.
    let sent = stream.write_all(get("shop.example", "/api").as_bytes());
    sent.is_ok() && stream.read_to_string(&mut response).is_ok() && response.starts_with("HTTP/1.1 200")
}

#[tokio::test(flavor = "multi_thread")]
async fn upgraded_connections_count_until_they_close() {
    let address = start().await.http;
    let done = tokio::task::spawn_blocking(move || {
        let upgrade = "GET /api HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let held = open_many(address, 100, upgrade);
        assert!(!is_served(address), "the client has all its connections already");
        drop(held);
        wait_until(|| is_served(address));
    });
    done.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_left_during_a_response_hold_nothing() {
    let address = start().await.http;
    let done = tokio::task::spawn_blocking(move || {
        for way in ["", "TE: trailers\r\n"] {
            let request = format!("GET /shape/quiet HTTP/1.1\r\nHost: shop.example\r\n{way}\r\n");
            drop(open_many(address, 100, &request));
            wait_until(|| is_served(address));
        }
    });
    done.await.unwrap();
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + TIMEOUT;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "not in time");
        std::thread::yield_now();
    }
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

/// Requests share connections to a pod that speaks HTTP/2, but not with those of a client that reads no responses.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_block_no_others() {
    let cluster = start().await;
    let address = cluster.http;
    let request = |length: usize| {
        format!(
            "POST /grpc HTTP/1.1\r\nHost: shop.example\r\nTE: trailers\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let head = request(1 << 30);
    // The pod sends back what it gets, so that nothing more is accepted once nothing more is read.
    let silent = tokio::task::spawn_blocking(move || {
        let fill = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
            stream
        };
        let filling: Vec<_> = (0..4).map(|_| std::thread::spawn(fill.clone())).collect();
        filling.into_iter().map(|one| one.join().unwrap()).collect::<Vec<TcpStream>>()
    });
    let silent = silent.await.unwrap();
    let other = tokio::net::TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = other.connect(address).await.unwrap();
    let mut response = String::new();
    let exchange = async {
        other.write_all((request(5) + "hello").as_bytes()).await.unwrap();
        other.read_to_string(&mut response).await.unwrap();
    };
    tokio::time::timeout(TIMEOUT, exchange).await.expect("a response");
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("hello"), "{response}");
    drop(silent);
}
