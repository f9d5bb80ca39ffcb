//! Several servers on one etcd never allocate the same address or port.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::request_tests::Cluster;
use etcd_server::EtcdCluster;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SERVICES_PER_SERVER: usize = 40;

/// The store's own tests start etcd in the same way.
#[expect(dead_code, reason = "no member is killed here")]
#[path = "../../store/tests/contract/etcd_server.rs"]
mod etcd_server;

async fn create(server: &Cluster, name: String) -> (u16, Value) {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    server.json("POST", SERVICES, service).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_and_ports_are_allocated_once() {
    let etcd = EtcdCluster::start(1);
    let server = async || Cluster::on(Arc::new(etcd.connect("/registry/").await)).await;
    let servers = [server().await, server().await];
    let mut creations = Vec::new();
    for number in 0..SERVICES_PER_SERVER {
        for (which, server) in servers.iter().enumerate() {
            creations.push(create(server, format!("s-{which}-{number}")));
        }
    }
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (code, created) in join_all(creations).await {
        assert_eq!(code, 201, "{created}");
        let address = created["spec"]["clusterIP"].as_str().unwrap().to_owned();
        assert!(addresses.insert(address), "allocated twice: {created}");
        assert!(ports.insert(created["spec"]["ports"][0]["nodePort"].as_i64().unwrap()), "allocated twice: {created}");
    }
    assert_eq!((addresses.len(), ports.len()), (2 * SERVICES_PER_SERVER, 2 * SERVICES_PER_SERVER));

    // A requested address goes to one of the requests.
    let create_with_address = |server, name: &str| {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.77", "ports": [{"port": 80, "nodePort": 32_100}]}});
        async move { Cluster::json(server, "POST", SERVICES, service).await.0 }
    };
    if !addresses.contains("10.96.0.77") && !ports.contains(&32_100) {
        let codes =
            join_all((0..8).map(|number| {
                create_with_address(&servers[number % 2], ["a", "b", "c", "d", "e", "f", "g", "h"][number])
            }))
            .await;
        assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "{codes:?}");
        assert!(codes.iter().all(|code| matches!(code, 201 | 422)), "{codes:?}");
    }
    for server in &servers {
        server.started.stop.send_replace(true);
    }
}
