//! The connections of a registry.

use std::convert::Infallible;
use std::time::Duration;

use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use knarr_listen::{Clients, host_of};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::handler::handle;
use crate::{Access, Store};

/// Connections at a time; further clients wait.
const MAX_CONNECTIONS: usize = 256;
/// Connections of one client at a time; further ones are closed. Pods count as their node, and cannot keep others from pulling.
const MAX_PER_CLIENT: usize = 128;
/// How long a client may take for the head of a request, and stay silent between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves a registry over plain HTTP until the future is dropped, which closes its connections.
pub async fn serve(listener: TcpListener, store: Store, access: Access) {
    let (mut connections, clients) = (JoinSet::new(), Clients::new(MAX_PER_CLIENT));
    let builder = builder();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, client)) => {
                    let Some(permit) = clients.acquire(host_of(client.ip())) else { continue };
                    let serving = connection(builder.clone(), stream, store.clone(), access);
                    connections.spawn(async move {
                        let _permit = permit;
                        serving.await;
                    });
                }
                Err(error) => {
                    // Out of descriptors, for example: those in use come back.
                    tracing::warn!(%error, "the registry cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// No HTTP/2, which nobody uses without TLS: a connection would be hundreds of requests, each with a file.
fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
}

async fn connection(builder: Builder, stream: TcpStream, store: Store, access: Access) {
    let service = service_fn(|request| {
        let store = store.clone();
        async move { Ok::<_, Infallible>(handle(&store, access, request).await) }
    });
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection of the registry failed");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A registry in a directory, read-only and not, on ports of its own.
    struct Served {
        directory: tempfile::TempDir,
        push: std::net::SocketAddr,
        pull: std::net::SocketAddr,
    }

    async fn served() -> Served {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let [push, pull] =
            [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
        let (push_address, pull_address) = (push.local_addr().unwrap(), pull.local_addr().unwrap());
        tokio::spawn(serve(push, store.clone(), Access::PullAndPush));
        tokio::spawn(serve(pull, store, Access::Pull));
        Served { directory, push: push_address, pull: pull_address }
    }

    /// Sends one request; returns the head and the body of the response.
    async fn send(address: std::net::SocketAddr, line: &str, headers: &str, body: &[u8]) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A refused request may be closed before its body is read.
        let _ = stream.write_all(body).await;
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        let end = response.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
        (head, response[end + 4..].to_vec())
    }

    fn status(head: &str) -> &str {
        head.split(' ').nth(1).unwrap()
    }

    fn header<'a>(head: &'a str, name: &str) -> &'a str {
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default()
    }

    fn digest(content: &[u8]) -> String {
        crate::reference::Digest::of(content).to_string()
    }

    #[tokio::test]
    async fn an_image_is_pushed_in_pieces_and_pulled() {
        let served = served().await;
        let (config, layer) = (b"{}".as_slice(), b"a layer of some bytes".as_slice());
        // One request for the configuration, three for the layer.
        let (head, _) =
            send(served.push, &format!("POST /v2/app/blobs/uploads/?digest={}", digest(config)), "", config).await;
        assert_eq!(status(&head), "201");
        let (head, _) = send(served.push, "POST /v2/app/blobs/uploads/", "", b"").await;
        let place = header(&head, "location").to_owned();
        assert_eq!(status(&head), "202");
        let (head, _) = send(served.push, &format!("PATCH {place}"), "Content-Range: 0-6\r\n", &layer[..7]).await;
        assert_eq!((status(&head), header(&head, "range")), ("202", "0-6"));
        let (head, _) = send(served.push, &format!("PATCH {place}"), "Content-Range: 3-9\r\n", &layer[3..10]).await;
        assert_eq!(status(&head), "416", "a piece out of order");
        let (head, _) = send(served.push, &format!("PUT {place}?digest={}", digest(layer)), "", &layer[7..]).await;
        assert_eq!(status(&head), "201", "{head}");

        let descriptor = |content: &[u8]| format!(r#"{{"digest":"{}","size":{}}}"#, digest(content), content.len());
        let manifest =
            format!(r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#, descriptor(config), descriptor(layer));
        let media_type = "Content-Type: application/vnd.oci.image.manifest.v1+json\r\n";
        let (head, _) = send(served.push, "PUT /v2/app/manifests/v1", media_type, manifest.as_bytes()).await;
        assert_eq!(
            (status(&head), header(&head, "docker-content-digest")),
            ("201", digest(manifest.as_bytes()).as_str())
        );

        for reference in ["v1".to_owned(), digest(manifest.as_bytes())] {
            let (head, body) = send(served.pull, &format!("GET /v2/app/manifests/{reference}"), "", b"").await;
            assert_eq!((status(&head), body.as_slice()), ("200", manifest.as_bytes()));
            assert_eq!(header(&head, "content-type"), "application/vnd.oci.image.manifest.v1+json");
            let (head, body) = send(served.pull, &format!("HEAD /v2/app/manifests/{reference}"), "", b"").await;
            assert_eq!((header(&head, "content-length"), body.len()), (manifest.len().to_string().as_str(), 0));
        }
        let blob = format!("GET /v2/app/blobs/{}", digest(layer));
        assert_eq!(send(served.pull, &blob, "", b"").await.1, layer);
        let (head, body) = send(served.pull, &blob, "Range: bytes=2-6\r\n", b"").await;
        assert_eq!((status(&head), body.as_slice()), ("206", &layer[2..7]));
        assert_eq!(status(&send(served.pull, &blob, "Range: bytes=99-\r\n", b"").await.0), "416");
        assert_eq!(send(served.pull, "GET /v2/app/tags/list", "", b"").await.1, br#"{"name":"app","tags":["v1"]}"#);
        assert_eq!(send(served.pull, "GET /v2/_catalog", "", b"").await.1, br#"{"repositories":["app"]}"#);

        // A mount of a blob that is there needs no upload; a deleted manifest takes its tags along.
        let mount = format!("POST /v2/other/blobs/uploads/?mount={}&from=app", digest(layer));
        assert_eq!(status(&send(served.push, &mount, "", b"").await.0), "201");
        let delete = format!("DELETE /v2/app/manifests/{}", digest(manifest.as_bytes()));
        assert_eq!(status(&send(served.push, &delete, "", b"").await.0), "202");
        assert_eq!(status(&send(served.pull, "GET /v2/app/manifests/v1", "", b"").await.0), "404");
        assert_eq!(std::fs::read_dir(served.directory.path().join("uploads")).unwrap().count(), 0);
    }

    /// The limit of connections is one of requests, and of open files.
    #[tokio::test]
    async fn a_connection_is_one_request_at_a_time() {
        let served = served().await;
        let mut stream = TcpStream::connect(served.pull).await.unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        stream.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &settings].concat()).await.unwrap();
        let mut response = [0; 64];
        // It may be reset with what was not read.
        let count = stream.read(&mut response).await.unwrap_or(0);
        let response = &response[..count];
        assert!(response.is_empty() || response.starts_with(b"HTTP/1.1 4"), "{response:?}");
    }

    /// What has a digest stays as it is: a request that still writes to the upload would change it afterwards.
    #[tokio::test]
    async fn nothing_is_appended_to_a_blob() {
        let served = served().await;
        let (head, _) = send(served.push, "POST /v2/app/blobs/uploads/", "", b"").await;
        let place = header(&head, "location").to_owned();
        let mut slow = TcpStream::connect(served.push).await.unwrap();
        let patch = format!("PATCH {place} HTTP/1.1\r\nHost: {}\r\nContent-Length: 8\r\n\r\ngood", served.push);
        slow.write_all(patch.as_bytes()).await.unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let received = served.directory.path().join("uploads").join(place.rsplit('/').next().unwrap());
        while std::fs::read(&received).unwrap() != b"good" {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let finish = format!("PUT {place}?digest={}", digest(b"good"));
        let (head, _) = send(served.push, &finish, "", b"").await;
        let is_finished = status(&head) == "201";
        slow.write_all(b"evil").await.unwrap();
        let mut response = [0; 12];
        slow.read_exact(&mut response).await.unwrap();
        let (_, body) = send(served.pull, &format!("GET /v2/app/blobs/{}", digest(b"good")), "", b"").await;
        assert!(!is_finished && !body.ends_with(b"evil"), "{head}: {}", String::from_utf8_lossy(&body));
    }

    /// A pod that holds many connections must not keep the nodes from pulling.
    #[tokio::test]
    async fn one_client_cannot_hold_all_connections() {
        let served = served().await;
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            held.push(socket.connect(served.pull).await.unwrap());
        }
        let request = send(served.pull, "GET /v2/", "", b"");
        let (head, _) = tokio::time::timeout(Duration::from_secs(20), request).await.expect("no response");
        assert_eq!(status(&head), "200");
    }

    /// A page in a browser reaches loopback, by a name that it rebinds or across origins.
    #[tokio::test]
    async fn web_pages_push_nothing() {
        let served = served().await;
        for (host, headers, expected) in [
            ("localhost:5000", "", "202"),
            ("registry.localhost:5000", "", "202"),
            ("127.0.0.1:5000", "", "202"),
            ("[::1]:5000", "", "202"),
            ("rebound.example:5000", "", "403"),
            ("localhost.rebound.example", "", "403"),
            ("localhost:5000", "Origin: https://page.example\r\n", "403"),
            ("localhost:5000", "Sec-Fetch-Site: cross-site\r\n", "403"),
        ] {
            let mut stream = TcpStream::connect(served.push).await.unwrap();
            let head = format!(
                "POST /v2/app/blobs/uploads/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
                 Content-Length: 0\r\n{headers}\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            assert_eq!(status(&response), expected, "{host} {headers}");
        }
    }

    #[tokio::test]
    async fn what_is_wrong_or_not_allowed_is_refused() {
        let served = served().await;
        let unknown = "a".repeat(64);
        let manifest = format!(r#"{{"schemaVersion":2,"config":{{"digest":"sha256:{unknown}"}}}}"#);
        for (address, line, body, code) in [
            (served.pull, "POST /v2/app/blobs/uploads/".to_owned(), "", "denied"),
            (served.pull, "PUT /v2/app/manifests/v1".to_owned(), "{}", "denied"),
            (served.pull, format!("DELETE /v2/app/blobs/sha256:{unknown}"), "", "denied"),
            (served.push, format!("POST /v2/app/blobs/uploads/?digest=sha256:{unknown}"), "other", "digest_invalid"),
            (served.push, "PUT /v2/app/manifests/v1".to_owned(), "no json", "manifest_invalid"),
            (served.push, "PUT /v2/app/manifests/v1".to_owned(), r#"{"schemaVersion":1}"#, "manifest_invalid"),
            (served.push, "PUT /v2/app/manifests/v1".to_owned(), &manifest, "manifest_blob_unknown"),
            (
                served.push,
                format!("PUT /v2/app/manifests/sha256:{unknown}"),
                r#"{"schemaVersion":2}"#,
                "digest_invalid",
            ),
            (served.push, "GET /v2/app/manifests/v1".to_owned(), "", "manifest_unknown"),
            (served.push, "GET /v2/app/tags/list".to_owned(), "", "name_unknown"),
            (served.push, "GET /v2/../tags/list".to_owned(), "", "name_invalid"),
            (served.push, format!("GET /v2/app/blobs/sha256:{unknown}"), "", "blob_unknown"),
            (
                served.push,
                "PATCH /v2/app/blobs/uploads/67e55044-10b1-426f-9247-bb680e5fe0c8".to_owned(),
                "x",
                "blob_upload_unknown",
            ),
            (served.push, "POST /v2/".to_owned(), "", "unsupported"),
        ] {
            let (head, response) = send(address, &line, "", body.as_bytes()).await;
            let response = String::from_utf8_lossy(&response).to_ascii_lowercase();
            assert!(response.contains(&format!("\"{code}\"")), "{line}: {head} {response}");
        }
        assert_eq!(std::fs::read_dir(served.directory.path().join("uploads")).unwrap().count(), 0, "nothing is left");
    }
}
