//! Several servers on one etcd: what one gives out, no other gives out again.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use futures::future::join_all;
use knarr_store::{Etcd, EtcdOptions};
use serde_json::{Value, json};

use crate::journeys::Cluster;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const EACH: usize = 40;

/// Debian's etcd on free ports of the loopback interface, gone with the test.
struct EtcdServer {
    process: Child,
    endpoint: String,
    _directory: tempfile::TempDir,
}

impl EtcdServer {
    fn start() -> EtcdServer {
        let directory = tempfile::tempdir().unwrap();
        // Both are held at once, so that they differ.
        let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [endpoint, peer] =
            held.each_ref().map(|listener| format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port()));
        drop(held);
        let process = Command::new("etcd")
            .args(["--data-dir", &directory.path().join("data").display().to_string()])
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap", "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is needed for this test: install Debian's etcd-server package");
        EtcdServer { process, endpoint, _directory: directory }
    }

    async fn server(&self) -> Cluster {
        let store = Etcd::connect(std::slice::from_ref(&self.endpoint), None, EtcdOptions::default()).await.unwrap();
        Cluster::on(Arc::new(store)).await
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to do.
        self.process.kill().unwrap_or_default();
        self.process.wait().map(drop).unwrap_or_default();
    }
}

async fn create(server: &Cluster, name: String) -> (u16, Value) {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    server.json("POST", SERVICES, service).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_and_ports_are_given_out_once() {
    let etcd = EtcdServer::start();
    let servers = [etcd.server().await, etcd.server().await];
    let mut wanted = Vec::new();
    for number in 0..EACH {
        for (which, server) in servers.iter().enumerate() {
            wanted.push(create(server, format!("s-{which}-{number}")));
        }
    }
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (code, made) in join_all(wanted).await {
        assert_eq!(code, 201, "{made}");
        let address = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
        assert!(addresses.insert(address), "given twice: {made}");
        assert!(ports.insert(made["spec"]["ports"][0]["nodePort"].as_i64().unwrap()), "given twice: {made}");
    }
    assert_eq!((addresses.len(), ports.len()), (2 * EACH, 2 * EACH));

    // One that is asked for by name goes to one of those who ask.
    let asked = |server, name: &str| {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.77", "ports": [{"port": 80, "nodePort": 32_100}]}});
        async move { Cluster::json(server, "POST", SERVICES, service).await.0 }
    };
    if !addresses.contains("10.96.0.77") && !ports.contains(&32_100) {
        let codes = join_all(
            (0..8).map(|number| asked(&servers[number % 2], ["a", "b", "c", "d", "e", "f", "g", "h"][number])),
        )
        .await;
        assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "{codes:?}");
        assert!(codes.iter().all(|code| matches!(code, 201 | 422)), "{codes:?}");
    }
    for server in &servers {
        server.started.stop.send_replace(true);
    }
}
