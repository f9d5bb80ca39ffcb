//! Load balancer addresses on the local network: neighbours find them on the right node, also after they have moved.

use std::net::{IpAddr, SocketAddr, TcpStream};

use knarr_network::cidr::Cidr;
use knarr_network::load_balancer::announce;
use serde_json::{Value, json};

use crate::api::{Api, NODES, SERVICES};
use crate::host::{Namespace, TIMEOUT, command, outsider};
use crate::services::eventually;

/// One address per family, within the networks of the link with the outsider, and a stale hardware address.
const ADDRESSES: [&str; 2] = ["192.168.50.77", "fd50::77"];
const ELSEWHERE: &str = "02:00:00:00:00:99";

fn balancer() -> Value {
    let points: Vec<Value> = ADDRESSES.iter().map(|address| json!({"ip": address})).collect();
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}, "status": {"loadBalancer": {"ingress": points}}})
}

/// Whether this node has an address, as seen by an outsider: nothing listens there, so it refuses.
fn is_here(outside: &Namespace, address: &str) -> bool {
    let to = SocketAddr::new(address.parse().unwrap(), 9);
    let tried = outside.run(|| TcpStream::connect_timeout(&to, TIMEOUT));
    tried.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn own_addresses() -> Vec<IpAddr> {
    let listed = command("ip -o address show");
    let texts = listed.lines().filter_map(|line| line.split_whitespace().nth(3)?.split('/').next());
    texts.filter_map(|text| text.parse().ok()).collect()
}

pub fn neighbours_learn_where_a_balancer_s_address_is() {
    let outside = outsider();
    for address in ADDRESSES {
        let entry = format!("neighbour replace {address} lladdr {ELSEWHERE} dev eth0 nud reachable");
        command(&format!("ip -n {} {entry}", outside.name));
    }
    let api = Api::default();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    api.put(NODES, node);
    api.put(SERVICES, balancer());
    let pool: Vec<Cidr> = ["192.168.50.64/26", "fd50::40/122"].map(|text| text.parse().unwrap()).into();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let start = || {
        let (shared, pool) = (api.clone(), pool.clone());
        runtime.spawn(async move { announce::run(shared.informers(), "here".to_owned(), pool).await })
    };
    let first = start();
    for address in ADDRESSES {
        eventually(address, || is_here(&outside, address), |is_here| *is_here);
    }
    // Served, but never used as a source address.
    let route = command("ip -6 route get fd50::2");
    assert!(!route.contains(ADDRESSES[1]), "{route}");
    // What is deleted while nothing watches is released at the next start; the node's own addresses stay.
    first.abort();
    api.delete(SERVICES, "n", "s");
    let _second = start();
    let held = || -> Vec<IpAddr> {
        let wanted = ADDRESSES.map(|address| address.parse::<IpAddr>().unwrap());
        own_addresses().into_iter().filter(|address| wanted.contains(address)).collect()
    };
    eventually("nothing is held", held, Vec::is_empty);
    assert!(own_addresses().contains(&"fd50::1".parse().unwrap()), "{:?}", own_addresses());
}
