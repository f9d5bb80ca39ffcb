//! Network policies against the kernel: which connections are allowed, for policies of every form.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use knarr_network::policy;
use serde_json::{Value, json};

use crate::api::{Api, NAMESPACES, PODS, POLICIES};
use crate::frames::{EVERYBODY, datagram, gateway_mac, listen, mac_of, send, until};
use crate::host::{Namespace, Network, ask, ask_again, command, outsider};

/// Long enough for a response between namespaces of one host, short enough for many that never come.
const WAIT: Duration = Duration::from_millis(300);

struct Cluster {
    api: Api,
    outside: Namespace,
    pods: Vec<(&'static str, Namespace, Vec<IpAddr>)>,
    runtime: tokio::runtime::Runtime,
    network: Network,
}

impl Cluster {
    /// A node with three pods in two namespaces, each serving ports 80, 81 and 8080.
    fn new() -> Self {
        let outside = outsider();
        let network = Network::new(&["10.244.1.0/24", "fd00:244:1::/64"]);
        let api = Api::default();
        for (name, team) in [("shop", "sales"), ("bank", "money")] {
            let labels = json!({"kubernetes.io/metadata.name": name, "team": team});
            api.put(
                NAMESPACES,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}),
            );
        }
        let mut pods = Vec::new();
        for name in ["shop/web", "shop/db", "bank/vault"] {
            let (pod, at) = network.add(json!({}));
            for port in [80, 81, 8080] {
                pod.serve(port, name);
            }
            api.put(PODS, object(name, &at));
            pods.push((name, pod, at));
        }
        command(&format!("ip -n {} route add 10.244.0.0/16 via 192.168.50.1", outside.name));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let informers = runtime.block_on(async { api.informers() });
        let settings = policy::Settings { node_name: "here".into(), data_directory: network.data.path().to_owned() };
        runtime.spawn(policy::run(informers, settings));
        Self { api, outside, pods, runtime, network }
    }

    fn pod(&self, name: &str) -> &(&'static str, Namespace, Vec<IpAddr>) {
        self.pods.iter().find(|(other, ..)| *other == name).unwrap()
    }

    /// Whether a connection succeeds, from a pod, the node or the outside.
    fn reaches(&self, from: &str, to: &str, port: u16, family: usize) -> bool {
        let address = SocketAddr::new(self.pod(to).2[family], port);
        let connect = || TcpStream::connect_timeout(&address, WAIT).is_ok();
        match from {
            "node" => connect(),
            "outside" => self.outside.run(connect),
            pod => self.pod(pod).1.run(connect),
        }
    }

    fn policy(&self, name: &str, spec: &Value) {
        self.api.put(
            POLICIES,
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": name, "namespace": "shop"}, "spec": spec}),
        );
    }

    fn eventually(&self, what: &str, from: &str, to: &str, port: u16, expected: bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        for family in [0, 1] {
            if from == "outside" && family == 1 {
                continue;
            }
            while self.reaches(from, to, port, family) != expected {
                assert!(Instant::now() < deadline, "{what}: {from} to {to}:{port} should be {expected}");
            }
        }
    }
}

fn object(name: &str, at: &[IpAddr]) -> Value {
    let (namespace, short) = name.split_once('/').unwrap();
    let ips: Vec<Value> = at.iter().map(|ip| json!({"ip": ip})).collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": short, "namespace": namespace, "labels": {"app": short}},
        "spec": {"nodeName": "here", "containers": [{"name": "c", "image": "i", "ports": [{"name": "admin", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": at[0], "podIPs": ips}})
}

/// A crafted frame does not bypass a policy, whatever its source address.
pub fn a_crafted_frame_is_held_back() {
    let cluster = Cluster::new();
    // No pod of the shop may send or receive.
    cluster.policy("all", &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    cluster.eventually("a policy", "shop/web", "bank/vault", 80, false);
    // Some kernels pass bridged frames to the rules for packets. Policies must not depend on it.
    for setting in ["iptables", "ip6tables"] {
        match std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{setting}"), "0") {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
    }
    let ((_, vault, from), (_, web, to)) = (cluster.pod("bank/vault"), cluster.pod("shop/web"));
    let heard = web.run(|| listen(([0, 0, 0, 0], 7777).into()));
    let gateway: IpAddr = [10, 244, 1, 1].into();
    let (node, own, other) = (gateway_mac(vault, gateway), mac_of(Some(vault), "eth0"), mac_of(Some(web), "eth0"));
    vault.run(|| {
        for source in [from[0], gateway, cluster.pod("shop/db").2[0]] {
            for mac in [node, other, EVERYBODY] {
                send("eth0", &datagram((mac, own), source, to[0], 7777, &format!("from {source}")));
            }
        }
    });
    let sender = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    sender.send_to(b"from the node", (to[0], 7777)).unwrap();
    assert_eq!(until(&heard, "from the node"), [""; 0]);
}

/// A pod's first packet is filtered, although no status has its address yet.
pub fn a_new_pod_is_isolated_at_once() {
    let cluster = Cluster::new();
    let vault = SocketAddr::new(cluster.pod("bank/vault").2[0], 80);
    let start = |name: &str| {
        let (namespace, short) = name.split_once('/').unwrap();
        let started = Instant::now();
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={short};K8S_POD_UID={name}");
        let (pod, at) = cluster.network.add(json!({"args": args}));
        println!("  ADD of {name} took {:?}", started.elapsed());
        (pod, at, started.elapsed())
    };
    let planned = |name: &str| {
        let mut pod = object(name, &["0.0.0.0".parse().unwrap()]);
        pod["status"] = json!({"phase": "Pending"});
        cluster.api.put(PODS, pod);
    };
    let reaches = |pod: &Namespace| pod.run(|| TcpStream::connect_timeout(&vault, WAIT).is_ok());
    start("bank/before");
    // No pod of the shop may send or receive.
    cluster.policy("all", &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    cluster.eventually("a policy", "shop/web", "bank/vault", 80, false);
    for name in ["shop/new", "bank/new"] {
        planned(name);
    }
    let (isolated, at, _) = start("shop/new");
    assert!(!reaches(&isolated), "a policy forbids it");
    isolated.serve(80, "isolated");
    let to_new = SocketAddr::new(at[0], 80);
    let vault_pod = &cluster.pod("bank/vault").1;
    assert!(vault_pod.run(|| TcpStream::connect_timeout(&to_new, WAIT)).is_err(), "nobody may reach it");
    assert!(TcpStream::connect_timeout(&to_new, WAIT).is_ok(), "but the node");
    let (free, ..) = start("bank/new");
    assert!(reaches(&free), "no policy is for it, and it need not wait for its status");
    // The policies of a pod that the API has not reported are unknown.
    let (unknown, _, took) = start("shop/unknown");
    assert!(!reaches(&unknown));
    assert!(took < Duration::from_secs(3), "the plugin waits, but not for long: {took:?}");
    planned("bank/late");
    let (late, ..) = start("bank/late");
    assert!(reaches(&late));
    // The agent is stopped: running pods continue, and new ones wait for it.
    let Cluster { runtime, network, .. } = cluster;
    runtime.shutdown_timeout(Duration::from_secs(5));
    let started = Instant::now();
    let args = "K8S_POD_NAMESPACE=bank;K8S_POD_NAME=orphan";
    let (orphan, _) = network.add(json!({"args": args}));
    assert!(started.elapsed() < Duration::from_secs(1), "nobody is waited for");
    let reaches = |pod: &Namespace| pod.run(|| TcpStream::connect_timeout(&vault, WAIT).is_ok());
    assert!(!reaches(&orphan) && reaches(&free));
}

pub fn policies_decide_which_connections_succeed() {
    let cluster = Cluster::new();
    let from = |peer: Value| json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [peer]}]});
    let on = |ports: Value| json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": ports}]});
    let to = |peer: Value| json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [{"to": [peer]}]});
    let everyone = ["node", "outside", "shop/db", "bank/vault"];
    for sender in everyone {
        cluster.eventually("without a policy", sender, "shop/web", 80, true);
    }
    // Each policy, and whether it allows: sender, receiver, port.
    let cases: Vec<(&str, Value, Vec<(&str, &str, u16, bool)>)> = vec![
        (
            "nobody",
            json!({"podSelector": {}}),
            vec![
                ("shop/db", "shop/web", 80, false),
                ("bank/vault", "shop/web", 80, false),
                ("outside", "shop/web", 80, false),
                ("node", "shop/web", 80, true),
                ("shop/web", "shop/web", 80, true),
                ("shop/web", "bank/vault", 80, true),
            ],
        ),
        (
            "everybody",
            json!({"podSelector": {}, "ingress": [{}]}),
            vec![("outside", "shop/web", 80, true), ("bank/vault", "shop/db", 80, true)],
        ),
        (
            "pods of the namespace",
            from(json!({"podSelector": {}})),
            vec![
                ("bank/vault", "shop/web", 80, false),
                ("shop/db", "shop/web", 80, true),
                ("bank/vault", "shop/db", 80, true),
            ],
        ),
        (
            "pods by label",
            from(json!({"podSelector": {"matchLabels": {"app": "vault"}}})),
            vec![("shop/db", "shop/web", 80, false), ("bank/vault", "shop/web", 80, false)],
        ),
        (
            "a namespace",
            from(json!({"namespaceSelector": {"matchLabels": {"team": "money"}}})),
            vec![("shop/db", "shop/web", 80, false), ("bank/vault", "shop/web", 80, true)],
        ),
        (
            "pods of a namespace",
            from(
                json!({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["money"]}]},
                "podSelector": {"matchLabels": {"app": "other"}}}),
            ),
            vec![("bank/vault", "shop/web", 80, false)],
        ),
        (
            "a network",
            from(json!({"ipBlock": {"cidr": "192.168.0.0/16"}})),
            vec![("shop/db", "shop/web", 80, false), ("outside", "shop/web", 80, true)],
        ),
        (
            "a network with a hole",
            from(json!({"ipBlock": {"cidr": "192.168.0.0/16", "except": ["192.168.50.2/32"]}})),
            vec![("outside", "shop/web", 80, false)],
        ),
        (
            "a port",
            on(json!([{"port": 80}])),
            vec![
                ("shop/db", "shop/web", 81, false),
                ("shop/db", "shop/web", 80, true),
                ("outside", "shop/web", 80, true),
            ],
        ),
        (
            "a range of ports",
            on(json!([{"port": 80, "endPort": 81}])),
            vec![("shop/db", "shop/web", 8080, false), ("shop/db", "shop/web", 81, true)],
        ),
        (
            "a port by name",
            on(json!([{"port": "admin"}])),
            vec![("shop/db", "shop/web", 80, false), ("shop/db", "shop/web", 8080, true)],
        ),
        ("another protocol", on(json!([{"port": 80, "protocol": "UDP"}])), vec![("shop/db", "shop/web", 80, false)]),
        (
            "several peers on several ports",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"app": "db"}}}, {"ipBlock": {"cidr": "192.168.0.0/16"}}],
                "ports": [{"port": 80}, {"port": "admin"}]}]}),
            vec![
                ("bank/vault", "shop/web", 80, false),
                ("shop/db", "shop/web", 81, false),
                ("shop/db", "shop/web", 80, true),
                ("shop/db", "shop/web", 8080, true),
                ("outside", "shop/web", 81, false),
                ("outside", "shop/web", 8080, true),
            ],
        ),
        (
            "nowhere",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"]}),
            vec![
                ("shop/web", "shop/db", 80, false),
                ("shop/web", "bank/vault", 80, false),
                ("shop/db", "shop/web", 80, true),
            ],
        ),
        (
            "to pods by label",
            to(json!({"podSelector": {"matchLabels": {"app": "db"}}})),
            vec![("shop/web", "bank/vault", 80, false), ("shop/web", "shop/db", 80, true)],
        ),
        (
            "to a port by name",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
            "egress": [{"ports": [{"port": "admin"}]}]}),
            vec![("shop/web", "shop/db", 80, false), ("shop/web", "shop/db", 8080, true)],
        ),
    ];
    for (name, spec, expected) in cases {
        cluster.policy("only", &spec);
        for (sender, receiver, port, is_allowed) in expected {
            cluster.eventually(name, sender, receiver, port, is_allowed);
        }
    }
    changes_are_followed(&cluster);
}

fn changes_are_followed(cluster: &Cluster) {
    // Two policies on one pod: what either allows is allowed.
    let own = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]});
    cluster.policy("only", &own);
    cluster.eventually("one policy", "bank/vault", "shop/web", 80, false);
    cluster.policy(
        "more",
        &json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "money"}}}]}]}),
    );
    cluster.eventually("two policies", "bank/vault", "shop/web", 80, true);
    cluster.eventually("two policies", "shop/db", "shop/web", 80, true);
    // A connection that was allowed when it started continues.
    let address = SocketAddr::new(cluster.pod("shop/web").2[0], 80);
    let mut kept = cluster.pod("bank/vault").1.run(|| TcpStream::connect(address)).unwrap();
    ask_again(&mut kept).unwrap();
    let labels = json!({"team": "other"});
    cluster.api.put(
        NAMESPACES,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bank", "labels": labels}}),
    );
    cluster.eventually("the namespace changed", "bank/vault", "shop/web", 80, false);
    ask_again(&mut kept).unwrap();
    // A pod whose label changes is selected by other policies.
    let mut renamed = object("shop/db", &cluster.pod("shop/db").2);
    renamed["metadata"]["labels"]["app"] = json!("former");
    cluster.api.put(PODS, renamed);
    cluster.eventually("the pod changed", "shop/db", "shop/web", 80, false);
    let started = Instant::now();
    cluster.api.delete(POLICIES, "shop", "only");
    cluster.api.delete(POLICIES, "shop", "more");
    cluster.eventually("no policy any more", "bank/vault", "shop/web", 80, true);
    println!("  policies gone from the kernel after {:?}", started.elapsed());
    assert!(ask(address).is_ok());
    let left = command("nft list table ip knarr-policy");
    assert!(!left.contains("pods-") && !left.contains("policy-in"), "nothing is left of them: {left}");
}
