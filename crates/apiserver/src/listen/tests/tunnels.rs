//! Tests of the tunnels of nodes over real connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::task::JoinHandle;

use super::listening_server::{ListeningServer, TEST_TIMEOUT};
use crate::pki::Purpose;

/// A node that opens nothing.
struct Closed;

impl knarr_tunnel::Gate for Closed {
    async fn allows(&self, _: SocketAddr) -> bool {
        false
    }
}

const CERTIFICATE_HOURS: i64 = 365 * 24;

/// Opens a tunnel with a certificate that is valid for a few seconds; `None` if it has expired before the server saw it.
async fn open(listening: &ListeningServer, seconds: i64) -> Option<hyper::upgrade::Upgraded> {
    let purpose = Purpose::Client { user: "system:node:a".into(), group: "system:nodes".into() };
    let issued = Timestamp::now() - SignedDuration::from_hours(CERTIFICATE_HOURS) + SignedDuration::from_secs(seconds);
    let leaf = listening.pki.authority.sign(&purpose, issued).unwrap();
    let stream = listening.connect_with(&listening.client("http/1.1", &leaf)).await;
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { drop(driver.with_upgrades().await) });
    let request = Request::get(knarr_tunnel::PATH)
        .header(HOST, "localhost")
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, knarr_tunnel::PROTOCOL)
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => Some(hyper::upgrade::on(response).await.unwrap()),
        StatusCode::UNAUTHORIZED => None,
        other => panic!("{other}"),
    }
}

/// A server at which nodes may open tunnels, with a Node `a`.
async fn listening_with_node() -> ListeningServer {
    let listening = ListeningServer::new().await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "tunnels"},
        "rules": [{"verbs": ["get"], "nonResourceURLs": [knarr_tunnel::PATH]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "tunnels"}, "subjects": [{"kind": "Group", "name": "system:nodes"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tunnels"}});
    for (path, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{path}");
        assert_eq!(listening.cluster.json("POST", &path, object).await.0, 201);
    }
    register(&listening).await;
    listening
}

async fn register(listening: &ListeningServer) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}});
    assert_eq!(listening.cluster.json("POST", "/api/v1/nodes", node).await.0, 201);
}

fn serve(connection: hyper::upgrade::Upgraded) -> JoinHandle<Result<(), hyper::Error>> {
    tokio::spawn(knarr_tunnel::serve(TokioIo::new(connection), Arc::new(Closed)))
}

/// Waits until the server uses this many tunnels of the node.
async fn wait_for_count(listening: &ListeningServer, expected: usize) {
    let tunnels = &listening.cluster.server().kubelets.tunnels;
    let reached = async {
        while tunnels.count("a") != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = tokio::time::timeout(TEST_TIMEOUT, reached).await.is_ok();
    assert!(in_time, "{} tunnels instead of {expected}", tunnels.count("a"));
}

#[tokio::test]
async fn a_tunnel_ends_with_the_certificate_that_opened_it() {
    let listening = listening_with_node().await;
    let lasting = serve(open(&listening, 3600).await.unwrap());
    let mut brief = None;
    // A slow host may need longer than the certificate is valid.
    for seconds in [2, 10, 60] {
        brief = open(&listening, seconds).await;
        if brief.is_some() {
            break;
        }
    }
    let brief = serve(brief.expect("a certificate that is valid for a minute"));
    // The connection ends, whatever the node does.
    let ended = tokio::time::timeout(TEST_TIMEOUT * 3, brief).await;
    assert!(ended.is_ok(), "the tunnel outlives its certificate");
    // The one with a valid certificate is left.
    wait_for_count(&listening, 1).await;
    assert!(!lasting.is_finished());
    listening.stop().await;
}

#[tokio::test]
async fn a_tunnel_ends_with_its_node() {
    let listening = listening_with_node().await;
    let first = serve(open(&listening, 3600).await.unwrap());
    wait_for_count(&listening, 1).await;
    assert_eq!(listening.cluster.json("DELETE", "/api/v1/nodes/a", json!({})).await.0, 200);
    let ended = tokio::time::timeout(TEST_TIMEOUT, first).await;
    assert!(ended.is_ok(), "the tunnel outlives its node");
    wait_for_count(&listening, 0).await;
    // Its certificate is still valid. A tunnel is used once the node has registered again.
    let second = serve(open(&listening, 3600).await.unwrap());
    assert_eq!(listening.cluster.server().kubelets.tunnels.count("a"), 0);
    register(&listening).await;
    wait_for_count(&listening, 1).await;
    assert!(!second.is_finished());
    listening.stop().await;
}
