//! Packets of a hostile pod or neighbour have no effect. Frames of a link keep their order, so a packet that has not arrived
//! before a legitimate one that was sent later does not arrive at all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};

use crate::api::{Api, NODES};
use crate::frames::{
    ALL_NODES, ALL_NODES_MAC, EVERYBODY, Mac, arp_claim, datagram, gateway_mac, icmpv6, listen, mac_of,
    neighbour_claim, send, tunnelled, until,
};
use crate::host::{Namespace, Network, ask, command, outsider};

const GATEWAYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 244, 1, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, 1))];

struct Pod {
    namespace: Namespace,
    at: Vec<IpAddr>,
    mac: Mac,
    /// The node's hardware address, as this pod knows it.
    node: Mac,
}

fn pods<const COUNT: usize>(network: &Network) -> [Pod; COUNT] {
    std::array::from_fn(|_| {
        let (namespace, at) = network.add(json!({}));
        let (mac, node) = (mac_of(Some(&namespace), "eth0"), gateway_mac(&namespace, GATEWAYS[0]));
        Pod { namespace, at, mac, node }
    })
}

impl Pod {
    fn sends(&self, frame: &[u8]) {
        self.namespace.run(|| send("eth0", frame));
    }
}

pub fn a_node_s_loopback_is_out_of_reach() {
    let outside = outsider();
    let network = Network::new(&["10.244.1.0/24"]);
    // Host ports need the dangerous setting.
    let mapped: Value =
        json!({"runtimeConfig": {"portMappings": [{"hostPort": 8000, "containerPort": 80, "protocol": "tcp"}]}});
    let (pod, at) = network.add(mapped);
    let node = gateway_mac(&pod, GATEWAYS[0]);
    // Others may have set it for all interfaces.
    std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
    let heard = listen("0.0.0.0:7777".parse().unwrap());
    let loopback: IpAddr = [127, 0, 0, 1].into();
    let own = mac_of(Some(&pod), "eth0");
    pod.run(|| {
        send("eth0", &datagram((node, own), at[0], loopback, 7777, "from a pod"));
        send("eth0", &datagram((node, own), loopback, GATEWAYS[0], 7777, "as loopback"));
        send("eth0", &datagram((node, own), at[0], GATEWAYS[0], 7777, "rightful"));
    });
    assert_eq!(until(&heard, "rightful"), [""; 0], "from a pod");
    let (here, there) = (mac_of(None, "eth0"), mac_of(Some(&outside), "eth0"));
    let (client, server): (IpAddr, IpAddr) = ([192, 168, 50, 2].into(), [192, 168, 50, 1].into());
    outside.run(|| {
        send("eth0", &datagram((here, there), client, loopback, 7777, "from a neighbour"));
        send("eth0", &datagram((here, there), client, server, 7777, "rightful"));
    });
    assert_eq!(until(&heard, "rightful"), [""; 0], "from a neighbour");
}

pub fn pods_cannot_spoof_addresses() {
    let _outside = outsider();
    let network = Network::new(&["10.244.1.0/24", "fd00:244:1::/64"]);
    let [one, two, three]: [Pod; 3] = pods(&network);
    for family in [0, 1] {
        let any: SocketAddr = if family == 0 { ([0, 0, 0, 0], 7777).into() } else { ([0u16; 8], 7777).into() };
        let heard = two.namespace.run(|| listen(any));
        let on_node = listen(any);
        let (own, victim, other) = (one.at[family], two.at[family], three.at[family]);
        let by_node = (one.node, one.mac);
        one.sends(&datagram(by_node, other, victim, 7777, "as another pod"));
        one.sends(&datagram(by_node, GATEWAYS[family], victim, 7777, "as the node"));
        one.sends(&datagram((two.mac, one.mac), own, victim, 7777, "past the node"));
        one.sends(&datagram((EVERYBODY, one.mac), own, victim, 7777, "to everybody"));
        one.sends(&datagram(by_node, own, victim, 7777, "rightful"));
        assert_eq!(until(&heard, "rightful"), [""; 0], "at another pod, family {family}");
        one.sends(&datagram(by_node, other, GATEWAYS[family], 7777, "as another pod"));
        one.sends(&datagram(by_node, own, GATEWAYS[family], 7777, "rightful"));
        assert_eq!(until(&on_node, "rightful"), [""; 0], "at the node, family {family}");
    }
    claims_change_nothing(&one, &two);
}

/// ARP and neighbour advertisements by which a pod would capture another's traffic.
fn claims_change_nothing(one: &Pod, two: &Pod) {
    two.namespace.serve(8080, "two");
    let addresses = |at: &[IpAddr]| match at {
        [IpAddr::V4(four), IpAddr::V6(six)] => (*four, *six),
        other => panic!("{other:?}"),
    };
    let ((victim, victim_6), (gateway, gateway_6)) = (addresses(&two.at), addresses(&GATEWAYS));
    for at in &two.at {
        assert_eq!(ask((*at, 8080)).unwrap().0, "two", "the node knows the pod");
    }
    let heard = two.namespace.run(|| listen("0.0.0.0:7778".parse().unwrap()));
    for frame in [
        arp_claim(one.node, one.mac, victim, gateway),
        arp_claim(EVERYBODY, one.mac, victim, victim),
        arp_claim(two.mac, one.mac, gateway, victim),
        arp_claim(EVERYBODY, one.mac, gateway, gateway),
        neighbour_claim(one.node, one.mac, victim_6),
        neighbour_claim(two.mac, one.mac, gateway_6),
    ] {
        one.sends(&frame);
    }
    one.sends(&datagram((one.node, one.mac), one.at[0], two.at[0], 7778, "rightful"));
    until(&heard, "rightful");
    let forger: String = one.mac.map(|byte| format!("{byte:02x}")).join(":");
    for (place, address) in [
        (String::new(), IpAddr::V4(victim)),
        (String::new(), IpAddr::V6(victim_6)),
        (format!("-n {}", two.namespace.name), IpAddr::V4(gateway)),
        (format!("-n {}", two.namespace.name), IpAddr::V6(gateway_6)),
    ] {
        let known = command(&format!("ip {place} neigh show {address}"));
        assert!(!known.contains(&forger), "{address} is taken to be at the forger: {known}");
    }
    for at in &two.at {
        assert_eq!(ask((*at, 8080)).unwrap().0, "two", "the node still reaches the pod");
    }
}

/// A node that cannot set the rules attaches no pod, however often it is tried.
pub fn no_pod_is_attached_without_the_guard() {
    command("ip link set lo up");
    let network = Network::new(&["10.244.1.0/24"]);
    let pod = Namespace::new();
    for _ in 0..2 {
        // There is no `nft`.
        assert!(network.call("ADD", &pod, json!({"path": "/nowhere"})).is_err());
    }
    network.call("ADD", &pod, json!({})).unwrap();
    assert!(command("nft list table inet knarr-guard").contains("from-pod"));
}

/// Packets in the tunnel between nodes are taken from nodes only, and never as those of this node's own pods.
pub fn only_nodes_send_into_the_tunnel() {
    let outside = outsider();
    let (here, far): (IpAddr, IpAddr) = ([192, 168, 50, 1].into(), [172, 20, 0, 2].into());
    let network = Network::new(&["10.244.1.0/24"]);
    let [one, two, three]: [Pod; 3] = pods(&network);
    let api = Api::default();
    // Two say of themselves that they are at addresses of this node, and one that it is at many: nothing leads there, and
    // others are reached all the same.
    for (name, address, cidr) in [
        ("a-liar", here, "10.244.7.0/24"),
        ("another-liar", GATEWAYS[0], "10.244.8.0/24"),
        ("a-third-liar", [224, 0, 0, 1].into(), "10.244.9.0/24"),
        ("here", here, "10.244.1.0/24"),
        ("far", far, "10.244.3.0/24"),
    ] {
        api.put(
            NODES,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]}}),
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let informers = runtime.block_on(async { api.informers() });
    let settings = knarr_network::pod_routes::Settings {
        node_name: "here".to_owned(),
        cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        bridge: "knarr0".to_owned(),
    };
    runtime.spawn(knarr_network::pod_routes::run(informers, settings));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !command("ip route show").contains("10.244.3.0/24 via 10.244.3.0 dev knarr-vx") {
        assert!(std::time::Instant::now() < deadline, "no tunnel");
        std::thread::yield_now();
    }
    let routes = command("ip route show");
    assert!(["10.244.7.0", "10.244.8.0", "10.244.9.0"].iter().all(|to| !routes.contains(to)), "{routes}");
    let tunnel = (mac_of(None, "knarr-vx"), [0x0a, 0x58, 10, 244, 3, 0]);
    let far_pod: IpAddr = [10, 244, 3, 9].into();
    let inner = |from: IpAddr, text: &str| datagram(tunnel, from, two.at[0], 7777, text);
    let heard = two.namespace.run(|| listen("0.0.0.0:7777".parse().unwrap()));
    for to in [here, GATEWAYS[0]] {
        one.sends(&tunnelled((one.node, one.mac), one.at[0], to, &inner(far_pod, "from a pod")));
    }
    let by_wire = (mac_of(None, "eth0"), mac_of(Some(&outside), "eth0"));
    let neighbour: IpAddr = [192, 168, 50, 2].into();
    outside.run(|| {
        send("eth0", &tunnelled(by_wire, neighbour, here, &inner(far_pod, "from a neighbour")));
        send("eth0", &tunnelled(by_wire, far, here, &inner(three.at[0], "as a pod of this node")));
        send("eth0", &datagram(by_wire, three.at[0], two.at[0], 7777, "as a pod of this node, without a tunnel"));
        send("eth0", &tunnelled(by_wire, far, here, &inner(far_pod, "rightful")));
    });
    assert_eq!(until(&heard, "rightful"), [""; 0]);
    // Another node would take it as this node's: the packet gets its address on the way out.
    command(&format!("ip -n {} address add {far}/32 dev eth0", outside.name));
    let (at_tunnel, elsewhere) = outside.run(|| (listen((far, 8472).into()), listen((far, 8473).into())));
    one.sends(&datagram((one.node, one.mac), one.at[0], far, 8472, "to another node's tunnel"));
    one.sends(&datagram((one.node, one.mac), one.at[0], far, 8473, "rightful"));
    assert_eq!(until(&elsewhere, "rightful"), [""; 0]);
    at_tunnel.set_nonblocking(true).unwrap();
    assert!(at_tunnel.recv(&mut [0; 256]).is_err(), "a pod reaches the tunnel of another node");
    runtime.shutdown_background();
}

pub fn pods_are_no_routers() {
    command("ip link set lo up");
    // A node whose pods have IPv4 only, while the host has IPv6 all the same.
    let network = Network::new(&["10.244.1.0/24"]);
    let [one, two]: [Pod; 2] = pods(&network);
    let before = command("ip -6 route show");
    let heard = listen("0.0.0.0:7777".parse().unwrap());
    let heard_by_pod = two.namespace.run(|| listen("0.0.0.0:7777".parse().unwrap()));
    let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xbad);
    // A router for half an hour, with a network to take addresses from (RFC 4861, section 4.2).
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0]);
    message.extend(Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0).octets());
    one.sends(&icmpv6((ALL_NODES_MAC, one.mac), router, ALL_NODES, &message));
    for (to, at) in [(&heard, GATEWAYS[0]), (&heard_by_pod, two.at[0])] {
        one.sends(&datagram((one.node, one.mac), one.at[0], at, 7777, "rightful"));
        until(to, "rightful");
    }
    assert_eq!(command("ip -6 route show"), before, "the node's routes");
    let routes = command(&format!("ip -n {} -6 route show", two.namespace.name));
    assert!(!routes.contains("2001:db8:bad") && !routes.contains("fe80::bad"), "another pod's routes: {routes}");
    let listed = command("ip -o link show");
    let own = listed.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
    let own: Vec<&str> = own.filter(|name| name.starts_with("kn")).collect();
    assert!(own.len() >= 3, "the bridge and two pods: {listed}");
    for name in own {
        let setting = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra")).unwrap();
        assert_eq!(setting.trim(), "0", "accept_ra of {name}");
    }
    let inside = one.namespace.run(|| std::fs::read_to_string("/proc/sys/net/ipv6/conf/eth0/accept_ra")).unwrap();
    assert_eq!(inside.trim(), "0", "accept_ra within a pod");
}

/// Pods that an earlier version attached to a bridge.
pub fn pods_on_the_bridge_are_adopted() {
    let _outside = outsider();
    let network = Network::new(&["10.244.1.0/24"]);
    let [one, two]: [Pod; 2] = pods(&network);
    for pod in [&one, &two] {
        put_on_bridge(&network, pod);
    }
    two.namespace.serve(8080, "two");
    let heard = two.namespace.run(|| listen("0.0.0.0:7777".parse().unwrap()));
    let bridge = mac_of(None, "knarr0");
    for pod in [&one, &two] {
        let neighbour = bridge.map(|byte| format!("{byte:02x}")).join(":");
        command(&format!("ip -n {} neigh replace 10.244.1.1 lladdr {neighbour} dev eth0", pod.namespace.name));
    }
    let crafted = |text: &str| datagram((two.mac, one.mac), one.at[0], two.at[0], 7777, text);
    let rightful = |text: &str| datagram((bridge, one.mac), one.at[0], two.at[0], 7777, text);
    one.sends(&crafted("past the node"));
    one.sends(&rightful("rightful"));
    assert_eq!(until(&heard, "rightful"), ["past the node"], "as it was");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let adopted = runtime.block_on(knarr_network::cni::adopt(network.data.path(), "knarr", "knarr0")).unwrap();
    assert_eq!(adopted, 2);
    one.sends(&crafted("past the node"));
    one.sends(&rightful("rightful"));
    assert_eq!(until(&heard, "rightful"), [""; 0]);
    assert_eq!(one.namespace.run(|| ask((two.at[0], 8080))).unwrap().0, "two", "they go on reaching each other");
    // A new pod reaches them, and they can be deleted.
    let (new, _) = network.add(json!({}));
    assert_eq!(new.run(|| ask((two.at[0], 8080))).unwrap().0, "two");
    network.call("CHECK", &two.namespace, json!({})).unwrap();
    network.call("DEL", &two.namespace, json!({})).unwrap();
    assert!(!command("ip -o link show").contains("knold2"), "its interface is gone");
}

fn put_on_bridge(network: &Network, pod: &Pod) {
    let path = network.data.path().join("leases/knarr").join(format!("{}@eth0.json", pod.namespace.name));
    let mut lease: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let name = format!("knold{}", pod.at[0].to_string().chars().last().unwrap().to_digit(10).unwrap() - 1);
    let now = lease["host_interface"].as_str().unwrap().to_owned();
    lease["host_interface"] = json!(name);
    std::fs::write(&path, lease.to_string()).unwrap();
    command(&format!("ip link set {now} down"));
    command(&format!("ip link set {now} name {name}"));
    command(&format!("ip address flush dev {name}"));
    command(&format!("ip link set {name} master knarr0 up"));
}
