//! Tests of known attacks by kubelets, pods and clients of connect requests, on the whole server.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, LOCATION, UPGRADE};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::forward::connect;
use super::location::{Location, Peer};
use crate::outbound::kubelet_tls::{Kubelets, Trust};
use crate::outbound::test_server::TestServer;
use crate::pki::{Identity, Pki};
use crate::request_tests::{Cluster, admin};

/// A cluster with one node and a pod on it; its kubelet is a test server.
async fn cluster(kubelet: &TestServer, address: &str) -> Cluster {
    let cluster = Cluster::new().await;
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), Identity::default(), Timestamp::now()).unwrap();
    let own = pki.kubelet_client(Timestamp::now()).unwrap();
    cluster.server().kubelets.set_credentials(&own.certificate, &own.key, &Trust::Anyone).unwrap();
    let kind = if address.parse::<std::net::IpAddr>().is_ok() { "InternalIP" } else { "Hostname" };
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {
            "addresses": [{"type": kind, "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        },
    });
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
    });
    for (path, object) in [
        ("/api/v1/nodes", node),
        ("/api/v1/namespaces/default/serviceaccounts", account),
        ("/api/v1/namespaces/default/pods", pod),
    ] {
        let (code, response) = cluster.json("POST", path, object).await;
        assert_eq!(code, 201, "{path}: {response}");
    }
    cluster
}

async fn send(cluster: &Cluster, method: &str, path: &str, upgrade: bool) -> (Response<()>, String) {
    let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
    if upgrade {
        request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "SPDY/3.1");
    }
    let response = cluster.server().handle(request.body(Full::new(Bytes::new())).unwrap(), &admin()).await;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(parts, ()), String::from_utf8_lossy(&body).into_owned())
}

fn message(body: &str) -> String {
    let status: Value = serde_json::from_str(body).unwrap_or_default();
    status["message"].as_str().unwrap_or(body).to_owned()
}

const POD: &str = "/api/v1/namespaces/default/pods/p";

/// CVE-2020-8559 and CVE-2018-1002102.
#[tokio::test]
async fn redirects_of_kubelets_are_followed_by_neither_client_nor_server() {
    let elsewhere = TestServer::start(|_, _| Value::Null).await;
    let target = format!("https://127.0.0.1:{}/run", elsewhere.port);
    let code = Arc::new(std::sync::atomic::AtomicU16::new(0));
    let returned = code.clone();
    let kubelet = TestServer::respond(None, move |_| {
        let code = returned.load(std::sync::atomic::Ordering::SeqCst);
        Response::builder().status(code).header(LOCATION, &target).body(Full::default()).unwrap()
    })
    .await;
    let cluster = cluster(&kubelet, "127.0.0.1").await;
    let mut failures = Vec::new();
    for status in [301, 302, 303, 307, 308] {
        code.store(status, std::sync::atomic::Ordering::SeqCst);
        for (method, path, upgrade) in [
            ("POST", "exec?command=sh", true),
            ("GET", "exec?command=sh", true),
            ("POST", "attach?stdout=1", true),
            ("POST", "portforward?ports=80", true),
            ("GET", "log", false),
            ("GET", "log?follow=1", false),
        ] {
            let (response, body) = send(&cluster, method, &format!("{POD}/{path}"), upgrade).await;
            let expected = if upgrade {
                format!("invalid upgrade response: status code {status}")
            } else {
                let query = path.strip_prefix("log").unwrap();
                format!(
                    "Get \"https://127.0.0.1:{}/containerLogs/default/p/c{query}\": redirects forbidden",
                    kubelet.port
                )
            };
            let location = response.headers().contains_key(LOCATION);
            let found = (response.status().as_u16(), location, message(&body), kubelet.received().len());
            if found != (500, false, expected, 1) {
                failures.push(format!("{status} {method} {path}: {found:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(elsewhere.connections(), 0);
}

/// A kubelet cannot fill the server's memory with an error.
#[tokio::test]
async fn errors_of_kubelets_are_passed_on_in_part() {
    let kubelet = TestServer::respond(None, move |_| {
        Response::builder().status(400).body(Full::new(Bytes::from(vec![b'x'; 4 << 20]))).unwrap()
    })
    .await;
    let cluster = cluster(&kubelet, "127.0.0.1").await;
    let (response, body) = send(&cluster, "GET", &format!("{POD}/log"), false).await;
    assert_eq!((response.status().as_u16(), message(&body).len()), (400, 50_000));
}

/// CVE-2018-1002105: after a refused upgrade the connection still belongs to the server.
#[tokio::test]
async fn a_failed_upgrade_relays_nothing() {
    for (status, expected) in [(200, 500), (204, 500), (400, 400), (403, 403)] {
        let kubelet = TestServer::respond(None, move |_| {
            Response::builder().status(status).body(Full::new(Bytes::from_static(b"no"))).unwrap()
        })
        .await;
        let cluster = cluster(&kubelet, "127.0.0.1").await;
        let (mut client, theirs) = tokio::io::duplex(64 * 1024);
        let server = cluster.server().clone();
        let serving = tokio::spawn(async move {
            let service = service_fn(move |request| {
                let server = server.clone();
                async move { Ok::<_, std::convert::Infallible>(server.handle(request, &admin()).await) }
            });
            let http = hyper::server::conn::http1::Builder::new();
            http.serve_connection(TokioIo::new(theirs), service).with_upgrades().await
        });
        let exec = format!(
            "POST {POD}/exec?command=sh HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
        );
        client.write_all(exec.as_bytes()).await.unwrap();
        client.write_all(b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {expected} ")), "{status}: {response}");
        assert!(response.contains("gitVersion"), "{status}: {response}");
        let received = kubelet.received();
        assert_eq!(received.len(), 1, "{status}: {received:?}");
        serving.await.unwrap().unwrap();
    }
}

/// CVE-2015-7528.
#[tokio::test]
async fn container_names_cannot_traverse_paths() {
    let kubelet = TestServer::start(|_, _| Value::Null).await;
    let cluster = cluster(&kubelet, "127.0.0.1").await;
    for name in ["../../ns/other/c", "..%2F..%2Fns%2Fother%2Fc", "c%2F..%2Fd", "c%00", "C"] {
        for (method, subresource, upgrade) in [("GET", "log", false), ("POST", "exec", true), ("POST", "attach", true)]
        {
            let path = format!("{POD}/{subresource}?command=sh&container={name}");
            let (response, body) = send(&cluster, method, &path, upgrade).await;
            assert_eq!(response.status(), 400, "{path}: {body}");
        }
    }
    assert_eq!(kubelet.connections(), 0);
}

/// CVE-2020-8562, and addresses that were never valid.
#[tokio::test]
async fn nodes_at_local_addresses_are_not_proxied_to() {
    for address in ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1", "localhost"] {
        let kubelet = TestServer::start(|_, _| Value::Null).await;
        let cluster = cluster(&kubelet, address).await;
        for name in
            ["n".to_owned(), format!("n:{}", kubelet.port), format!("https:n:{}", kubelet.port), "n:2379".into()]
        {
            let path = format!("/api/v1/nodes/{name}/proxy/pods");
            let (response, body) = send(&cluster, "GET", &path, false).await;
            assert_eq!(
                (response.status().as_u16(), message(&body).as_str()),
                (400, "address not allowed"),
                "{address}"
            );
        }
        assert_eq!(kubelet.connections(), 0, "{address}");
    }
}

/// The certificate would give access to everything that trusts the authority of the cluster.
#[tokio::test]
async fn the_client_certificate_is_sent_to_kubelets_only() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), Identity::default(), Timestamp::now()).unwrap();
    let own = pki.kubelet_client(Timestamp::now()).unwrap();
    let kubelets = Kubelets::default();
    kubelets.set_credentials(&own.certificate, &own.key, &Trust::Anyone).unwrap();
    for (peer, expected) in [(Peer::Kubelet { node: "n".into() }, true), (Peer::Workload, false)] {
        let server = TestServer::respond(Some(&pki.authority.certificate), |_| Response::default()).await;
        let location = Location {
            host: "127.0.0.1".into(),
            port: server.port,
            tls: true,
            path: "/".into(),
            peer: peer.clone(),
            node: None,
            global_only: false,
        };
        let mut connection = connect(&kubelets, &location).await.unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        connection.read_to_end(&mut Vec::new()).await.unwrap();
        let received = server.received();
        assert_eq!(received.iter().map(|request| request.certificate).collect::<Vec<_>>(), [expected], "{peer:?}");
    }
}

/// The credentials of the client are for this server only.
#[tokio::test]
async fn credentials_of_the_client_are_not_forwarded() {
    let kubelet = TestServer::respond(None, |_| Response::builder().status(403).body(Full::default()).unwrap()).await;
    let cluster = cluster(&kubelet, "127.0.0.1").await;
    let request = Request::get(format!("{POD}/exec?command=sh"))
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header("authorization", "Bearer secret")
        .header("impersonate-user", "ann")
        .header("impersonate-group", "system:masters")
        .header("sec-websocket-protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0")
        .body(Full::new(Bytes::new()))
        .unwrap();
    assert_eq!(cluster.server().handle(request, &admin()).await.status(), 403);
    let received = kubelet.received();
    let [request] = received.as_slice() else { panic!("{received:?}") };
    assert_eq!(request.headers["sec-websocket-protocol"], "v5.channel.k8s.io");
    for name in ["authorization", "impersonate-user", "impersonate-group"] {
        assert!(!request.headers.contains_key(name), "{name}");
    }
}

/// A plain request cannot open a stream.
#[tokio::test]
async fn streams_need_an_upgrade() {
    let kubelet = TestServer::start(|_, _| Value::Null).await;
    let cluster = cluster(&kubelet, "127.0.0.1").await;
    for path in ["exec?command=sh", "attach?stdout=1", "portforward?ports=80"] {
        let (response, body) = send(&cluster, "POST", &format!("{POD}/{path}"), false).await;
        assert_eq!((response.status().as_u16(), message(&body).as_str()), (400, "Upgrade request required"), "{path}");
    }
    assert_eq!(kubelet.connections(), 0);
}
