//! Which of a Service's endpoints get connections: near ones, terminating ones, those a client had before.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::NODES;
use crate::host::{TIMEOUT, ask, command};
use crate::services::{Cluster, eventually, is_refused};

/// Enough that each of two usable endpoints gets a connection.
const ASKS: usize = 30;

fn service(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 96, 0, last], 80))
}

/// The names of the pods that serve an address, over many connections.
fn answering(address: SocketAddr) -> HashSet<String> {
    (0..ASKS).flat_map(|_| ask(address)).map(|response| response.0).collect()
}

fn set(names: &[&str]) -> HashSet<String> {
    names.iter().map(ToString::to_string).collect()
}

pub fn near_endpoints_are_preferred() {
    let cluster = Cluster::new();
    let node = |zone: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here", "labels": {"topology.kubernetes.io/zone": zone}}});
    cluster.api.put(NODES, node("a"));
    let hinted = |hints: Value| json!({"conditions": {"ready": true}, "nodeName": "there", "hints": hints});
    let zone = |name: &str| hinted(json!({"forZones": [{"name": name}]}));
    let on = |zone: &str, node: &str| hinted(json!({"forZones": [{"name": zone}], "forNodes": [{"name": node}]}));
    let plain = json!({"conditions": {"ready": true}, "nodeName": "there"});
    cluster.service("s", 1, &json!({"trafficDistribution": "PreferSameZone"}), &[]);
    let _proxy = cluster.start();
    for (what, endpoints, expected) in [
        ("no hints", [plain.clone(), plain.clone()], ["pod0", "pod1"].as_slice()),
        ("one of this zone", [zone("a"), zone("b")], &["pod0"]),
        ("none of this zone", [zone("b"), zone("c")], &["pod0", "pod1"]),
        ("one without a hint", [zone("a"), plain], &["pod0", "pod1"]),
        ("one for this node", [on("a", "there"), on("a", "here")], &["pod1"]),
        ("none for this node", [on("a", "there"), on("b", "yonder")], &["pod0"]),
    ] {
        let endpoints: Vec<(usize, Value)> = endpoints.into_iter().enumerate().collect();
        cluster.described_endpoints("s", &endpoints);
        eventually(what, || answering(service(1)), |seen| *seen == set(expected));
    }
    // The node moves.
    cluster.described_endpoints("s", &[(0, zone("a")), (1, zone("b"))]);
    cluster.api.put(NODES, node("b"));
    eventually("another zone", || answering(service(1)), |seen| *seen == set(&["pod1"]));
}

pub fn terminating_endpoints_serve_when_no_other_does() {
    let cluster = Cluster::new();
    let said = |ready: bool, serving: bool, terminating: bool, node: &str| json!({"nodeName": node, "conditions": {"ready": ready, "serving": serving, "terminating": terminating}});
    let (ready, ending) = (said(true, true, false, "here"), said(false, true, true, "here"));
    let (unready, ended) = (said(false, false, false, "here"), said(false, false, true, "here"));
    let (ready_there, ending_there) = (said(true, true, false, "there"), said(false, true, true, "there"));
    let local = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
    cluster.service("s", 1, &local, &[]);
    let _proxy = cluster.start();
    let node_port = SocketAddr::from(([192, 168, 50, 1], 30_001));
    // What the endpoints are, who responds inside, and who responds to outsiders at this node.
    for (what, endpoints, inside, outside) in [
        ("ready beside ending", [&ready, &ending], ["pod0"].as_slice(), ["pod0"].as_slice()),
        ("all end", [&ending, &ending], &["pod0", "pod1"], &["pod0", "pod1"]),
        ("one ends, one is not ready", [&unready, &ending], &["pod1"], &["pod1"]),
        ("one ends here, one is ready elsewhere", [&ready_there, &ending], &["pod0"], &["pod1"]),
        ("all have ended", [&ended, &ended], &[], &[]),
        ("one ends elsewhere", [&ending_there, &ended], &["pod0"], &[]),
    ] {
        let endpoints: Vec<(usize, Value)> = endpoints.into_iter().cloned().enumerate().collect();
        cluster.described_endpoints("s", &endpoints);
        eventually(what, || answering(service(1)), |seen| *seen == set(inside));
        let from_outside = || -> HashSet<String> {
            let asks = if outside.is_empty() { 1 } else { ASKS };
            cluster.outside.run(|| (0..asks).flat_map(|_| ask(node_port)).map(|response| response.0).collect())
        };
        eventually(what, from_outside, |seen| *seen == set(outside));
    }
    cluster.endpoints("s", &[]);
    eventually("refused without any", || cluster.outside.run(|| ask(node_port)), is_refused);
}

pub fn traffic_from_inside_stays_on_the_node_where_asked() {
    let cluster = Cluster::new();
    let on = |node: &str| json!({"nodeName": node, "conditions": {"ready": true}});
    cluster.service("s", 1, &json!({"internalTrafficPolicy": "Local"}), &[]);
    let _proxy = cluster.start();
    cluster.described_endpoints("s", &[(0, on("there")), (1, on("here"))]);
    eventually("the near one", || answering(service(1)), |seen| *seen == set(&["pod1"]));
    let from_pod = || -> HashSet<String> {
        cluster.pods[0].0.run(|| (0..ASKS).flat_map(|_| ask(service(1))).map(|response| response.0).collect())
    };
    assert_eq!(from_pod(), set(&["pod1"]));
    // Packets go nowhere rather than to another node.
    cluster.described_endpoints("s", &[(0, on("there")), (1, on("there"))]);
    let lost = || TcpStream::connect_timeout(&service(1), TIMEOUT / 10);
    eventually("none near", lost, |response| {
        response.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
    });
}

pub fn clients_keep_their_endpoint_for_a_time() {
    let cluster = Cluster::new();
    let seconds = 2;
    let affine =
        json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}});
    cluster.service("s", 6, &affine, &[0, 1]);
    let _proxy = cluster.start();
    let remembered = || {
        let table = command("nft list table ip knarr-proxy");
        let elements: Vec<String> =
            table.lines().filter(|line| line.contains("expires")).map(|line| line.trim().to_owned()).collect();
        elements
    };
    assert!(remembered().is_empty());
    assert_eq!(answering(service(6)).len(), 1, "a client stays with its pod");
    assert_eq!(remembered().len(), 1, "and is remembered once: {:?}", remembered());
    // Each connection restarts the timeout.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(seconds) / 2);
        ask(service(6)).unwrap();
        assert_eq!(remembered().len(), 1);
    }
    eventually("a client that stays away is forgotten", remembered, Vec::is_empty);
}

pub fn health_ports_report_local_endpoints() {
    let cluster = Cluster::new();
    let balanced = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31_000});
    let endpoint = |node: &str, is_ready: bool| json!({"nodeName": node, "conditions": {"ready": is_ready}});
    cluster.service("s", 1, &balanced, &[]);
    let _proxy = cluster.start();
    for (first, second, code, count) in [
        (endpoint("here", true), endpoint("here", true), "200", 2),
        (endpoint("here", true), endpoint("there", true), "200", 1),
        (endpoint("here", false), endpoint("there", true), "503", 0),
    ] {
        cluster.described_endpoints("s", &[(0, first), (1, second)]);
        let asked = || cluster.outside.run(|| get(SocketAddr::from(([192, 168, 50, 1], 31_000)))).unwrap_or_default();
        eventually("the health port", asked, |response| {
            response.contains(&format!(" {code} "))
                && response.contains(&format!("\"localEndpoints\":{count}"))
                && response.contains(&format!("X-Load-Balancing-Endpoint-Weight: {count}"))
        });
    }
    cluster.service("s", 1, &json!({"type": "NodePort"}), &[0]);
    let port: (IpAddr, u16) = ([192, 168, 50, 1].into(), 31_000);
    eventually(
        "the port closes with the policy",
        || cluster.outside.run(|| TcpStream::connect_timeout(&port.into(), TIMEOUT)),
        is_refused,
    );
}

fn get(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}
