//! Pods that respond in many ways, on loopback.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};

/// A pod that returns its name and the whole head of each request, and echoes after an upgrade.
pub fn pod(name: &'static str) -> SocketAddr {
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

pub static WAS_SHY: Mutex<bool> = Mutex::new(false);

/// A pod that responds in the form that the path selects.
pub fn shape_shifter() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || respond_in_shape(stream));
        }
    });
    address
}

fn respond_in_shape(mut stream: TcpStream) -> Option<()> {
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
            // Never sends its body, nor closes.
            "/shape/quiet" => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".into(),
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
pub async fn streaming_pod() -> SocketAddr {
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
pub fn unused_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let [_, first, second, third] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, 64 | first, second, third), PORT.fetch_add(1, Ordering::Relaxed)).into()
}
