use super::*;
use serde_json::{Value, json};

fn node_context() -> NodeContext {
    NodeContext { node: "one".into(), zone: Some("a".into()), ..NodeContext::default() }
}

fn frontends(spec: Value, endpoints: Value) -> Vec<Frontend> {
    let service = serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec})).unwrap();
    let slice = json!({"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]});
    of(&service, &[Arc::new(serde_json::from_value(slice).unwrap())], &node_context())
}

fn endpoint(address: &str, node: &str, conditions: Value) -> Value {
    json!({"addresses": [address], "nodeName": node, "conditions": conditions})
}

fn addresses(endpoints: &[Endpoint]) -> Vec<String> {
    endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
}

#[test]
fn ready_endpoints_are_behind_a_service() {
    let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]});
    let ready = json!({"ready": true});
    let ending = json!({"ready": false, "serving": true, "terminating": true});
    let gone = json!({"ready": false});
    for (endpoints, expected) in [
        (
            json!([endpoint("10.0.0.1", "one", ready.clone()), endpoint("10.0.0.2", "two", gone.clone())]),
            vec!["10.0.0.1"],
        ),
        (json!([endpoint("10.0.0.1", "one", ending.clone()), endpoint("10.0.0.2", "two", gone)]), vec!["10.0.0.1"]),
        (json!([endpoint("10.0.0.1", "one", ending), endpoint("10.0.0.2", "two", ready)]), vec!["10.0.0.2"]),
    ] {
        assert_eq!(addresses(&frontends(spec.clone(), endpoints)[0].inside), expected);
    }
}

#[test]
fn local_policies_stay_on_the_node() {
    let ready = json!({"ready": true});
    let endpoints = json!([endpoint("10.0.0.1", "one", ready.clone()), endpoint("10.0.0.2", "two", ready)]);
    let spec = json!({"clusterIP": "10.96.0.1", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}],
        "externalTrafficPolicy": "Local"});
    let frontend = &frontends(spec, endpoints)[0];
    assert_eq!((addresses(&frontend.inside).len(), addresses(&frontend.outside)), (2, vec!["10.0.0.1".to_owned()]));
    assert!(frontend.keeps_source);
}

#[test]
fn hints_keep_traffic_in_the_zone() {
    let hinted = |address: &str, zone: &str| json!({"addresses": [address], "conditions": {"ready": true}, "hints": {"forZones": [{"name": zone}]}});
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]});
    let both = json!([hinted("10.0.0.1", "a"), hinted("10.0.0.2", "b")]);
    assert_eq!(addresses(&frontends(spec.clone(), both)[0].inside), ["10.0.0.1"]);
    let unhinted = json!([hinted("10.0.0.1", "a"), {"addresses": ["10.0.0.2"], "conditions": {"ready": true}}]);
    assert_eq!(frontends(spec, unhinted)[0].inside.len(), 2);
}

#[test]
fn endpoints_of_headless_slices_are_ignored() {
    let service: Service = serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "n"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}))
    .unwrap();
    let slice = json!({"metadata": {"name": "x", "labels": {"service.kubernetes.io/headless": "any"}},
        "addressType": "IPv4", "endpoints": [endpoint("10.0.0.1", "one", json!({"ready": true}))],
        "ports": [{"name": "", "port": 8080}]});
    let frontends = of(&service, &[Arc::new(serde_json::from_value(slice).unwrap())], &node_context());
    assert!(frontends[0].inside.is_empty() && !frontends[0].has_endpoints);
}

#[test]
fn nodes_keep_their_addresses_and_ports() {
    let node_context = |pool: &[&str]| NodeContext {
        protected: Arc::new(Protected {
            node_addresses: ["192.168.1.1".parse().unwrap()].into(),
            networks: ["10.96.0.0/12".parse().unwrap()].into(),
            ports: [(Protocol::Tcp, 8080)].into(),
        }),
        balancer_pool: Some(pool.iter().map(|text| text.parse().unwrap()).collect()),
        ..NodeContext::default()
    };
    let captured = |external: &str, balancer: &str, class: Option<&str>, port: u16, pool: &[&str]| {
        let service = json!({"metadata": {"name": "s", "namespace": "n"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{"port": port}],
                "externalIPs": [external], "loadBalancerClass": class},
            "status": {"loadBalancer": {"ingress": [{"ip": balancer}]}}});
        let frontends = of(&serde_json::from_value(service).unwrap(), &[], &node_context(pool));
        frontends[0].external_addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
    };
    let (node, other) = ("192.168.1.1", "203.0.113.7");
    assert_eq!(captured(node, "192.0.2.1", Some("x/y"), 6443, &[]), ["192.0.2.1"], "a node's address");
    assert_eq!(captured(other, node, None, 80, &[]), [other, node], "a free port of a node");
    for port in [22, 6443, 8080, 30_080] {
        assert_eq!(captured(other, node, None, port, &[]), [other], "port {port} of a node");
        assert_eq!(captured(other, node, Some("x/y"), port, &[]), [other], "port {port}, whoever gave it");
    }
    assert_eq!(captured(other, "8.8.8.8", None, 80, &[]), [other], "the cluster's load balancer gave nothing such");
    assert_eq!(captured(other, "8.8.8.8", None, 80, &["192.168.7.0/24"]), [other], "not of its pool");
    assert_eq!(captured(other, "192.168.7.1", None, 22, &["192.168.7.0/24"]), [other, "192.168.7.1"]);
    assert_eq!(captured(other, "8.8.8.8", Some("x/y"), 80, &[]), [other, "8.8.8.8"], "another load balancer's");
    assert_eq!(captured(other, "10.96.0.9", Some("x/y"), 80, &[]), [other], "another service's");
}

#[test]
fn endpoints_must_have_network_addresses() {
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]});
    let all = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "10.0.0.1"];
    let endpoints: Vec<Value> = all.iter().map(|address| endpoint(address, "one", json!({"ready": true}))).collect();
    assert_eq!(addresses(&frontends(spec, json!(endpoints))[0].inside), ["10.0.0.1"]);
}

#[test]
fn headless_services_have_no_frontend() {
    assert!(frontends(json!({"clusterIP": "None", "ports": [{"port": 80}]}), json!([])).is_empty());
}

#[test]
fn an_endpoint_counts_once_whatever_its_addresses() {
    let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]});
    let several = json!({"addresses": ["10.0.0.1", "10.0.0.2", "127.0.0.1"], "conditions": {"ready": true}});
    let loopback = json!({"addresses": ["127.0.0.1", "10.0.0.3"], "conditions": {"ready": true}});
    let found = frontends(spec, json!([several.clone(), several, loopback]));
    assert_eq!(addresses(&found[0].inside), ["10.0.0.1"]);
}

#[test]
fn a_service_of_many_ports_and_endpoints_does_not_fill_memory() {
    let ports = 10_000;
    let named = |number: usize| format!("p{number}");
    let of_service: Vec<Value> = (1..=ports).map(|port| json!({"name": named(port), "port": port})).collect();
    let of_slice: Vec<Value> =
        (1..=ports).map(|port| json!({"name": named(port), "port": port, "protocol": "TCP"})).collect();
    let of_node = |n: usize| if n == 499 { "one" } else { "two" };
    let endpoints: Vec<Value> = (0..500)
        .map(|n| endpoint(&format!("10.0.{}.{}", n / 250, n % 250 + 1), of_node(n), json!({"ready": true})))
        .collect();
    let slice = json!({"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": endpoints, "ports": of_slice});
    let addresses: Vec<String> = (0..1000).map(|n| format!("192.0.{}.{}", n / 250, n % 250 + 1)).collect();
    let mut ranges: Vec<String> = addresses.iter().map(|address| format!("{address}/32")).collect();
    ranges.push("fd00::/8".to_owned());
    let spec = json!({"clusterIP": "10.96.0.1", "ports": of_service, "externalTrafficPolicy": "Local",
        "externalIPs": addresses, "loadBalancerSourceRanges": ranges});
    let service = serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec})).unwrap();
    let found = of(&service, &[Arc::new(serde_json::from_value(slice).unwrap())], &node_context());
    assert_eq!(found.len(), ports);
    let all: usize = found.iter().map(|frontend| frontend.inside.len()).sum();
    assert!((ports..=MAX_PER_SERVICE).contains(&all), "{all}");
    for count in [|one: &Frontend| one.external_addresses.len(), |one: &Frontend| one.source_ranges.len()] {
        let all: usize = found.iter().map(count).sum();
        assert!((ports..=2 * MAX_PER_SERVICE).contains(&all), "{all}");
    }
    for family in [".", ":"] {
        assert!(found[0].source_ranges.iter().any(|range| range.contains(family)), "none would mean all");
    }
    assert!(
        found.iter().all(|frontend| frontend.outside.len() == 1 && frontend.local_ready == 1),
        "this node's is kept"
    );
}
