//! Services against the kernel: pods on one node, an outsider, and the proxy between them.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use knarr_network::proxy;
use serde_json::{Value, json};

use crate::api::{Api, SERVICE_CIDRS, SERVICES, SLICES};
use crate::host::{Namespace, Network, TIMEOUT, ask, ask_again, ask_datagram, outsider};

/// A node with two pods, the proxy running, and a host outside.
pub struct Cluster {
    pub api: Api,
    runtime: tokio::runtime::Runtime,
    pub outside: Namespace,
    pub pods: Vec<(Namespace, Vec<IpAddr>)>,
    _network: Network,
}

impl Cluster {
    pub fn new() -> Self {
        let outside = outsider();
        let network = Network::new(&["10.244.1.0/24", "fd00:244:1::/64"]);
        let pods: Vec<_> = (0..2).map(|_| network.add(json!({}))).collect();
        for (index, (pod, _)) in pods.iter().enumerate() {
            pod.serve(8080, &format!("pod{index}"));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { api: Api::default(), runtime, outside, pods, _network: network }
    }

    /// Starts the proxy and waits for its first transaction.
    pub fn start(&self) -> tokio::task::JoinHandle<()> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let api = self.api.clone();
        let task = self.runtime.spawn(async move {
            let settings = proxy::Settings {
                node_name: "here".into(),
                cluster_cidrs: vec!["10.244.0.0/16".into(), "fd00:244::/32".into()],
                node_port_addresses: vec![],
                balancer_pool: None,
                status: proxy::StatusSettings::default(),
            };
            proxy::run(api.informers(), settings, move || {
                let _ = sender.send(());
            })
            .await;
        });
        let waited = self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), receiver).await });
        waited.expect("the proxy's first transaction in time").unwrap();
        task
    }

    /// A Service with TCP and UDP port 80 and these pods behind it.
    pub fn service(&self, name: &str, last: u8, spec: &Value, pods: &[usize]) {
        let mut whole = json!({"clusterIP": format!("10.96.0.{last}"),
            "clusterIPs": [format!("10.96.0.{last}"), format!("fd00:96::{last:x}")], "type": "ClusterIP",
            "ports": [{"name": "tcp", "port": 80, "protocol": "TCP", "nodePort": 30_000 + u16::from(last)},
                {"name": "udp", "port": 80, "protocol": "UDP", "nodePort": 30_000 + u16::from(last)}]});
        for (key, value) in spec.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        let status = whole.as_object_mut().unwrap().remove("status").unwrap_or(Value::Null);
        let mut object =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "n"}, "spec": whole});
        if !status.is_null() {
            object["status"] = status;
        }
        self.api.put(SERVICES, object);
        self.endpoints(name, pods);
    }

    pub fn endpoints(&self, name: &str, pods: &[usize]) {
        let ready: Vec<(usize, Value)> =
            pods.iter().map(|pod| (*pod, json!({"conditions": {"ready": true}, "nodeName": "here"}))).collect();
        self.described_endpoints(name, &ready);
    }

    /// Pods with further fields of their endpoints.
    pub fn described_endpoints(&self, name: &str, pods: &[(usize, Value)]) {
        for (family, index) in [("IPv4", 0), ("IPv6", 1)] {
            let endpoint = |(pod, said): &(usize, Value)| {
                let mut endpoint = said.clone();
                endpoint["addresses"] = json!([self.pods[*pod].1[index]]);
                endpoint
            };
            let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
            self.api.put(SLICES, json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
                "metadata": {"name": format!("{name}-{family}"), "namespace": "n", "labels": {"kubernetes.io/service-name": name}},
                "endpoints": endpoints,
                "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"}]}));
        }
    }
}

/// Polls until the result is as expected: the proxy needs time for each change.
pub fn eventually<T: std::fmt::Debug>(what: &str, mut ask: impl FnMut() -> T, is_expected: impl Fn(&T) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let response = ask();
        if is_expected(&response) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {response:?}");
        std::thread::yield_now();
    }
}

pub fn is_refused<T>(response: &std::io::Result<T>) -> bool {
    response.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

pub fn services_forward_to_pods() {
    let cluster = Cluster::new();
    let local = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
    let affine = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
    let balancer = |last: u8, ranges: &[&str]| {
        json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges, "externalIPs": [format!("192.168.70.{last}")],
            "status": {"loadBalancer": {"ingress": [{"ip": format!("192.168.71.{last}"), "ipMode": "VIP"}]}}})
    };
    cluster.service("plain", 1, &json!({}), &[0, 1]);
    cluster.service("alone", 2, &json!({}), &[0]);
    cluster.service("port", 3, &json!({"type": "NodePort"}), &[0, 1]);
    cluster.service("local", 4, &local, &[0]);
    cluster.service("empty", 5, &json!({"type": "NodePort"}), &[]);
    cluster.service("affine", 6, &affine, &[0, 1]);
    cluster.service("open", 7, &balancer(7, &[]), &[0]);
    cluster.service("closed", 8, &balancer(8, &["10.99.0.0/16"]), &[0]);
    cluster.service("gone", 9, &json!({}), &[0]);
    let _proxy = cluster.start();
    let service = |last: u8| SocketAddr::from(([10, 96, 0, last], 80));
    let service_6 = |last: u16| SocketAddr::from(([0xfd00, 0x96, 0, 0, 0, 0, 0, last], 80));
    let node_port = |last: u16| SocketAddr::from(([192, 168, 50, 1], 30_000 + last));
    let pod0 = &cluster.pods[0].0;
    let outside = &cluster.outside;
    crate::host::command(&format!("ip -n {} route add 192.168.70.0/23 via 192.168.50.1", outside.name));

    for address in [service(1), service_6(1)] {
        let seen: HashSet<String> = (0..40).map(|_| pod0.run(|| ask(address)).unwrap().0).collect();
        assert_eq!(seen.len(), 2, "both pods response at {address}");
        assert!(ask(address).is_ok(), "the node reaches {address}");
    }
    assert_eq!(pod0.run(|| ask(service(2))).unwrap().0, "pod0", "a pod reaches itself through its service");
    assert_eq!(cluster.pods[1].0.run(|| ask(service(2))).unwrap(), ("pod0".into(), cluster.pods[1].1[0].to_string()));
    for from_outside in [node_port(3), SocketAddr::from(([0xfd50, 0, 0, 0, 0, 0, 0, 1], 30_003))] {
        let (_, seen) = outside.run(|| ask(from_outside)).unwrap();
        assert!(!seen.ends_with("50.2") && !seen.starts_with("fd50"), "the node stands in for the client: {seen}");
    }
    assert!(ask(node_port(3)).is_ok(), "the node's own port from the node");
    assert!(pod0.run(|| ask(node_port(3))).is_ok(), "the node's port from a pod");
    assert_eq!(outside.run(|| ask(node_port(4))).unwrap(), ("pod0".into(), "192.168.50.2".into()), "source kept");
    for (what, refused) in [
        ("from a pod", pod0.run(|| ask(service(5)))),
        ("from the node", ask(service(5))),
        ("from outside", outside.run(|| ask(node_port(5)))),
    ] {
        assert!(is_refused(&refused), "no endpoints, {what}: {refused:?}");
    }
    let seen: HashSet<String> = (0..20).map(|_| pod0.run(|| ask(service(6))).unwrap().0).collect();
    assert_eq!(seen.len(), 1, "a client stays with its pod");
    for address in [[192, 168, 70, 7], [192, 168, 71, 7]] {
        assert!(outside.run(|| ask((IpAddr::from(address), 80))).is_ok(), "{address:?} responds");
    }
    assert!(outside.run(|| ask((IpAddr::from([192, 168, 71, 8]), 80))).is_err(), "outside the ranges");
    assert!(outside.run(|| ask((IpAddr::from([192, 168, 70, 8]), 80))).is_ok(), "ranges are for load balancers");

    for (what, refused) in [
        ("from a pod", pod0.run(|| ask(SocketAddr::from(([10, 96, 0, 1], 81))))),
        ("from the node", ask(SocketAddr::from(([10, 96, 0, 1], 81)))),
    ] {
        assert!(is_refused(&refused), "no such port, {what}: {refused:?}");
    }
    let networks = || crate::host::command("nft list set ip knarr-proxy service-networks");
    let cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/112"]}});
    cluster.api.put(SERVICE_CIDRS, cidr);
    eventually("services' networks", networks, |set| set.contains("10.96.0.0/16"));
    let nobody = SocketAddr::from(([10, 96, 7, 7], 80));
    let lost = pod0.run(|| TcpStream::connect_timeout(&nobody, TIMEOUT / 10));
    assert!(lost.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut), "nobody's address: {lost:?}");
    cluster.api.delete(SERVICE_CIDRS, "", "kubernetes");
    eventually("they go", networks, |set| !set.contains("10.96.0.0/16"));

    // UDP clients that keep their port are moved by a change.
    let socket = cluster.pods[1].0.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    assert_eq!(ask_datagram(&socket, service(2)).unwrap().0, "pod0");
    cluster.endpoints("alone", &[1]);
    eventually(
        "UDP follows",
        || ask_datagram(&socket, service(2)).map(|response| response.0).ok(),
        |response| response.as_deref() == Some("pod1"),
    );
    cluster.endpoints("empty", &[0]);
    eventually("endpoints come", || pod0.run(|| ask(service(5))), Result::is_ok);
    cluster.endpoints("plain", &[]);
    eventually("endpoints go", || pod0.run(|| ask(service(1))), is_refused);
    cluster.api.delete(SERVICES, "n", "gone");
    eventually("a service goes", || pod0.run(|| TcpStream::connect_timeout(&service(9), TIMEOUT / 10)), Result::is_err);
    assert!(pod0.run(|| ask(service(3))).is_ok());
}

/// Listens on a port of the node itself.
fn serve_on_node(port: u16) {
    let listener = std::net::TcpListener::bind(("0.0.0.0", port)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"node itself\n");
        }
    });
}

pub fn services_capture_no_port_of_a_node() {
    let cluster = Cluster::new();
    let node = "192.168.50.1";
    serve_on_node(80);
    serve_on_node(22);
    serve_on_node(8088);
    cluster.outside.serve(80, "other");
    cluster.api.put(
        crate::api::NODES,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "there"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.50.2"}]}}),
    );
    let at = |address: &str| json!({"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}});
    let port = |number: u16| json!([{"name": "tcp", "port": number, "protocol": "TCP"}]);
    cluster.service("external", 1, &json!({"externalIPs": [node, "192.168.50.2"]}), &[0]);
    cluster.service("listening", 2, &json!({"type": "LoadBalancer", "status": at(node)}), &[0]);
    cluster.service("ssh", 3, &json!({"type": "LoadBalancer", "ports": port(22), "status": at(node)}), &[0]);
    cluster.service("free", 4, &json!({"type": "LoadBalancer", "ports": port(81), "status": at(node)}), &[0]);
    // Node ports are chosen by the API server, whose range is a setting: nothing but the kernel's rule keeps them off the node.
    for (last, number) in [(7, 8088), (8, 8089)] {
        let ports = json!([{"name": "tcp", "port": 80, "protocol": "TCP", "nodePort": number}]);
        cluster.service(&format!("low-{number}"), last, &json!({"type": "NodePort", "ports": ports}), &[0]);
    }
    // Two that claim the same address must not block each other or the others.
    cluster.service("first", 5, &json!({"externalIPs": ["192.168.70.9"]}), &[0]);
    cluster.service("second", 6, &json!({"externalIPs": ["192.168.70.9"]}), &[1]);
    let _proxy = cluster.start();
    let to = |port: u16| SocketAddr::from(([192, 168, 50, 1], port));
    for port in [80, 22, 8088] {
        assert_eq!(cluster.outside.run(|| ask(to(port))).unwrap().0, "node", "port {port} from outside");
        assert_eq!(ask(to(port)).unwrap().0, "node", "port {port} from the node");
        assert_eq!(cluster.pods[1].0.run(|| ask(to(port))).unwrap().0, "node", "port {port} from a pod");
    }
    for port in [81, 8089] {
        assert_eq!(cluster.outside.run(|| ask(to(port))).unwrap().0, "pod0", "port {port} is free");
    }
    let other = SocketAddr::from(([192, 168, 50, 2], 80));
    let response = cluster.pods[1].0.run(|| ask(other));
    assert!(response.as_ref().is_ok_and(|said| said.0 == "other"), "another node's address: {response:?}");
}

/// A host port captures nothing of Services, other pods or the outside (CVE-2019-9946, CVE-2025-67499).
pub fn host_ports_capture_nothing_of_others() {
    crate::host::command("ip link set lo up");
    crate::host::command("ip address add 10.96.0.10/32 dev lo");
    let cluster = Cluster::new();
    cluster.outside.serve(8443, "outside");
    cluster.pods[1].0.serve(8443, "pod1");
    let ports: Vec<Value> =
        [8443, 80, 30_001, 53].map(|port| json!({"hostPort": port, "containerPort": 8080, "protocol": "tcp"})).into();
    let (greedy, _) = cluster._network.add(json!({"runtimeConfig": {"portMappings": ports}}));
    greedy.serve(8080, "greedy");
    cluster.service("s", 1, &json!({"type": "NodePort"}), &[0]);
    let _proxy = cluster.start();
    serve_on_node(53);
    let to = |address: &str, port: u16| SocketAddr::new(address.parse().unwrap(), port);
    let pod1 = cluster.pods[1].1[0].to_string();
    for (address, port, expected) in [
        ("192.168.50.1", 8443, "greedy"),
        ("192.168.50.2", 8443, "outside"),
        (pod1.as_str(), 8443, "pod1"),
        ("10.96.0.1", 80, "pod0"),
        ("192.168.50.1", 30_001, "pod0"),
        ("10.96.0.10", 53, "node"),
    ] {
        let response = cluster.pods[0].0.run(|| ask(to(address, port))).map(|said| said.0);
        assert_eq!(response.ok().as_deref(), Some(expected), "{address}:{port}");
    }
}

pub fn connections_outlive_the_proxy() {
    let cluster = Cluster::new();
    cluster.service("port", 3, &json!({"type": "NodePort"}), &[0, 1]);
    let proxy = cluster.start();
    let address = SocketAddr::from(([192, 168, 50, 1], 30_003));
    let mut kept = cluster.outside.run(|| TcpStream::connect_timeout(&address, TIMEOUT)).unwrap();
    ask_again(&mut kept).unwrap();
    proxy.abort();
    // Without the proxy the kernel keeps forwarding.
    for _ in 0..10 {
        cluster.outside.run(|| ask(address)).unwrap();
    }
    ask_again(&mut kept).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut asked, mut failed) = (0, 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                asked += 1;
                failed += u32::from(cluster.outside.run(|| ask(address)).is_err());
            }
            (asked, failed)
        });
        let started = Instant::now();
        cluster.start();
        println!("  the proxy was back after {:?}", started.elapsed());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let (asked, failed) = asking.join().unwrap();
        println!("  {asked} new connections during the restart, {failed} failed");
        assert_eq!(failed, 0, "of {asked}");
    });
    ask_again(&mut kept).unwrap();
}
