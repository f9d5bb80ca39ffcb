//! Pods on the network, attached by the plugin.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::{Api, NODES};
use crate::host::{Namespace, Network, ask, command, outsider};

pub fn pods_get_addresses_and_reach_each_other() {
    let outside = outsider();
    outside.serve(8080, "outside");
    let network = Network::new(&["10.244.1.0/24", "fd00:244:1::/64"]);
    let started = Instant::now();
    let (one, one_at) = network.add(json!({}));
    println!("  first ADD took {:?}", started.elapsed());
    let started = Instant::now();
    let (two, two_at) = network.add(json!({}));
    println!("  second ADD took {:?}", started.elapsed());
    assert_eq!(one_at, ["10.244.1.2".parse::<IpAddr>().unwrap(), "fd00:244:1::2".parse().unwrap()]);
    one.serve(8080, "one");
    two.serve(8080, "two");
    for (from, to, says, seen) in
        [(&one, &two_at, "two", &one_at), (&two, &one_at, "one", &two_at), (&one, &one_at, "one", &one_at)]
    {
        for (address, own) in to.iter().zip(seen) {
            let response = from.run(|| ask((*address, 8080))).unwrap();
            assert_eq!(response, (says.to_owned(), own.to_string()));
        }
    }
    // The node sees the pods' addresses, and the outside sees the node's.
    assert_eq!(ask((one_at[0], 8080)).unwrap().0, "one");
    let seen = one.run(|| ask(SocketAddr::from(([192, 168, 50, 2], 8080)))).unwrap();
    assert_eq!(seen, ("outside".to_owned(), "192.168.50.1".to_owned()));
    let mtu = command(&format!("ip -n {} link show eth0", one.name));
    assert!(mtu.contains("mtu 1400"), "the MTU of the way out: {mtu}");

    network.call("CHECK", &one, json!({"prevResult": {}})).unwrap();
    network.call("STATUS", &one, json!({})).unwrap();
    command(&format!("ip -n {} address flush dev eth0", two.name));
    assert!(network.call("CHECK", &two, json!({})).is_err());
    network.call("DEL", &two, json!({})).unwrap();
    network.call("DEL", &two, json!({})).unwrap();
    assert!(network.call("CHECK", &two, json!({})).is_err());

    let valid = json!({"cni.dev/valid-attachments": []});
    network.call("GC", &one, valid).unwrap();
    assert!(!command("ip link show").contains("kn") || !command("ip -o link show type veth").contains(": kn"));
    assert!(network.call("ADD", &one, json!({"cniVersion": "9.0.0"})).unwrap_err()["code"] == 1);
    let versions = network.call("VERSION", &one, json!({})).unwrap();
    assert!(versions["supportedVersions"].as_array().unwrap().contains(&json!("1.1.0")));
    leases_come_back_when_pods_vanish(&network);
}

fn leases_come_back_when_pods_vanish(network: &Network) {
    let mut small = Network { data: tempfile::tempdir().unwrap(), config: network.config.clone() };
    small.config["podCIDRs"] = json!(["10.244.9.0/29"]);
    small.config["bridge"] = json!("knarr9");
    small.config["dataDir"] = json!(small.data.path());
    // Five addresses; each pod vanishes without a DEL.
    for _ in 0..12 {
        drop(small.add(json!({})));
    }
    let pods: Vec<Namespace> = (0..5).map(|_| small.add(json!({})).0).collect();
    let more = Namespace::new();
    assert_eq!(small.call("ADD", &more, json!({})).unwrap_err()["code"], 101);
    assert_eq!(small.call("STATUS", &more, json!({})).unwrap_err()["code"], 50);
    drop(pods);
}

pub fn host_ports_and_bandwidth() {
    let outside = outsider();
    let network = Network::new(&["10.244.1.0/24"]);
    let extra = json!({"runtimeConfig": {
        "portMappings": [{"hostPort": 8000, "containerPort": 8080, "protocol": "tcp", "hostIP": ""},
            {"hostPort": 8001, "containerPort": 8080, "protocol": "udp"}],
        "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000},
    }});
    let (pod, at) = network.add(extra.clone());
    pod.serve(8080, "pod");
    let node = SocketAddr::from(([192, 168, 50, 1], 8000));
    assert_eq!(outside.run(|| ask(node)).unwrap(), ("pod".to_owned(), "192.168.50.2".to_owned()));
    assert_eq!(ask(node).unwrap().0, "pod", "from the node");
    assert_eq!(pod.run(|| ask(node)).unwrap().0, "pod", "a pod reaches itself");
    assert_eq!(ask(SocketAddr::from(([127, 0, 0, 1], 8000))).unwrap().0, "pod", "from the node's loopback");
    let queue = command(&format!("tc -n {} qdisc show dev eth0", pod.name));
    assert!(queue.contains("tbf") && queue.contains("rate 8Mbit"), "{queue}");
    assert!(command("tc qdisc show").matches("tbf").count() == 1);
    network.call("DEL", &pod, extra).unwrap();
    assert!(outside.run(|| ask(node)).is_err());
    assert!(!command("nft list table ip knarr-host-ports").contains(&at[0].to_string()));
}

/// Two more nodes: one on this node's subnet, one behind a router.
pub fn nodes_reach_each_other() {
    command("ip link set lo up");
    let (near, router, far) = (Namespace::new(), Namespace::new(), Namespace::new());
    command("ip link add lan type bridge");
    command("ip link set lan up");
    command("ip address add 192.168.60.1/24 dev lan");
    for (node, address) in [(&near, "192.168.60.2/24"), (&router, "192.168.60.254/24")] {
        let port = format!("p-{}", &node.name[4..]);
        command(&format!("ip link add {port} type veth peer name eth0 netns {}", node.name));
        command(&format!("ip link set {port} master lan up"));
        command(&format!("ip -n {} address add {address} dev eth0", node.name));
        command(&format!("ip -n {} link set eth0 up", node.name));
    }
    command(&format!("ip -n {} link add eth1 type veth peer name eth0 netns {}", router.name, far.name));
    command(&format!("ip -n {} address add 172.20.0.1/24 dev eth1", router.name));
    command(&format!("ip -n {} link set eth1 up", router.name));
    router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap();
    command(&format!("ip -n {} address add 172.20.0.2/24 dev eth0", far.name));
    command(&format!("ip -n {} link set eth0 up", far.name));
    command(&format!("ip -n {} route add default via 172.20.0.1", far.name));
    command(&format!("ip -n {} route add default via 192.168.60.254", near.name));
    command("ip route add default via 192.168.60.254");

    let api = Api::default();
    for (name, address, pods) in [
        ("here", "192.168.60.1", ["10.244.1.0/24", "fd00:244:1::/64"]),
        ("near", "192.168.60.2", ["10.244.2.0/24", "fd00:244:2::/64"]),
        ("far", "172.20.0.2", ["10.244.3.0/24", "fd00:244:3::/64"]),
    ] {
        api.put(
            NODES,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"podCIDR": pods[0], "podCIDRs": pods},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}}),
        );
    }
    // Each node's routes are kept by a runtime whose threads are in that node's namespace.
    let runtimes: Vec<tokio::runtime::Runtime> = [("here", None), ("near", Some(&near)), ("far", Some(&far))]
        .into_iter()
        .map(|(name, node)| {
            let path = node.map(Namespace::path);
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .on_thread_start(move || {
                    if let Some(path) = &path {
                        let file = std::fs::File::open(path).unwrap();
                        nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                    }
                })
                .build()
                .unwrap();
            let settings = knarr_network::pod_routes::Settings {
                node_name: name.to_owned(),
                cluster_cidrs: ["10.244.0.0/16", "fd00:244::/32"].map(|text| text.parse().unwrap()).into(),
                bridge: "knarr0".to_owned(),
            };
            let informers = runtime.block_on(async { api.informers() });
            runtime.spawn(knarr_network::pod_routes::run(informers, settings));
            runtime
        })
        .collect();
    let pod = |cidrs: [&str; 2], node: Option<&Namespace>| {
        let network = Network::new(&cidrs);
        let (pod, at) = match node {
            Some(node) => node.run(|| network.add(json!({}))),
            None => network.add(json!({})),
        };
        (network, pod, at)
    };
    let (_n1, here_pod, here_at) = pod(["10.244.1.0/24", "fd00:244:1::/64"], None);
    let (_n2, near_pod, near_at) = pod(["10.244.2.0/24", "fd00:244:2::/64"], Some(&near));
    let (_n3, far_pod, far_at) = pod(["10.244.3.0/24", "fd00:244:3::/64"], Some(&far));
    for (pod, name) in [(&here_pod, "here"), (&near_pod, "near"), (&far_pod, "far")] {
        pod.serve(8080, name);
    }
    for (from, own, to, says) in [
        (&here_pod, &here_at, &near_at, "near"),
        (&near_pod, &near_at, &here_at, "here"),
        (&here_pod, &here_at, &far_at, "far"),
        (&far_pod, &far_at, &near_at, "near"),
    ] {
        for (address, own) in to.iter().zip(own) {
            let deadline = Instant::now() + Duration::from_secs(20);
            let response = loop {
                match from.run(|| ask((*address, 8080))) {
                    Err(_) if Instant::now() < deadline => {}
                    response => break response.unwrap_or_else(|error| panic!("{own} to {address}: {error}")),
                }
            };
            assert_eq!(response, (says.to_owned(), own.to_string()), "{own} to {address}");
        }
    }
    assert!(command("ip route show").contains("10.244.2.0/24 via 192.168.60.2"));
    assert!(command("ip route show").contains("10.244.3.0/24 via 10.244.3.0 dev knarr-vx"));
    // The routes of a deleted node are removed.
    api.delete(NODES, "", "near");
    let deadline = Instant::now() + Duration::from_secs(10);
    while command("ip route show").contains("10.244.2.0/24") {
        assert!(Instant::now() < deadline, "the route to a node that is gone stays");
        std::thread::yield_now();
    }
    for runtime in runtimes {
        runtime.shutdown_background();
    }
}
