//! Pods of several nodes reach each other: across subnets, in both families, and with another CNI plugin.

use std::path::Path;

use super::harness::{self, Cluster, IMAGE, Options, plain};

/// A pod on each of two nodes that serves its name and a file of many packets.
fn pods() -> String {
    let pod = |number: usize| {
        format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: pod-{number}, labels: {{app: web, pod: "{number}"}}}}
spec:
  nodeName: node-{number}
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: {IMAGE}
    command: ["sh", "-c"]
    args:
    - |
      mkdir -p /www/cgi-bin; echo pod-{number} > /www/name
      printf '#!/bin/sh\necho\necho $REMOTE_ADDR\n' > /www/cgi-bin/who; busybox chmod 755 /www/cgi-bin/who
      busybox dd if=/dev/zero of=/www/large bs=1000 count=1000
      exec httpd -f -p 8080 -h /www
    readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web-{number}}}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {{pod: "{number}"}}
  ports: [{{port: 80, targetPort: 8080}}]
"#
        )
    };
    [pod(1), pod(2)].join("---\n")
}

fn addresses(cluster: &Cluster, pod: &str) -> Vec<String> {
    let found = cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"]);
    found.split_whitespace().map(str::to_owned).collect()
}

/// What a pod receives from an address, or the error.
fn fetch(cluster: &Cluster, pod: &str, address: &str, port: u16, path: &str) -> Result<String, String> {
    let script = format!("printf 'GET /{path} HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}");
    let response = cluster.try_kubectl(&["exec", pod, "--", "sh", "-c", &script])?;
    let (head, body) = response
        .split_once("\r\n\r\n")
        .or_else(|| response.split_once("\n\n"))
        .ok_or_else(|| format!("{} bytes without a body: {response:.200}", response.len()))?;
    match head.lines().next() {
        Some(status) if status.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(head.to_owned()),
    }
}

/// Whether a pod resolves a Service's name to these addresses.
fn is_named(cluster: &Cluster, pod: &str, service: &str, addresses: &[&str]) -> bool {
    let name = format!("{service}.default.svc.cluster.local");
    let found = cluster.try_kubectl(&["exec", pod, "--", "nslookup", &name]).unwrap_or_default();
    addresses.iter().all(|address| found.contains(address))
}

/// Each pod reaches the other by address, with its own address, with packets of all sizes, and by its Service's name.
fn all_reach_each_other(cluster: &Cluster, families: usize) {
    cluster.apply(&pods());
    cluster.wait_for("the pods to be ready", || cluster.ready_pods("app=web") == 2);
    let known = ["pod-1", "pod-2"].map(|pod| addresses(cluster, pod));
    for (from, to) in [(0, 1), (1, 0)] {
        let (asking, asked) = (format!("pod-{}", from + 1), format!("pod-{}", to + 1));
        assert_eq!(known[to].len(), families, "{asked} has {:?}", known[to]);
        for (own, address) in known[from].iter().zip(&known[to]) {
            cluster.wait_for(&format!("{asked} at {address}"), || {
                fetch(cluster, &asking, address, 8080, "name").is_ok_and(|name| name == asked)
            });
            let seen = fetch(cluster, &asking, address, 8080, "cgi-bin/who").expect("an response");
            assert_eq!(plain(&seen), own, "{asking} is seen as itself");
            let large = fetch(cluster, &asking, address, 8080, "large").expect("an response of many packets");
            assert_eq!(large.len(), 1_000_000);
        }
        let service = format!("web-{}", to + 1);
        let path = "jsonpath={.spec.clusterIPs[*]}";
        let listed = cluster.kubectl(&["get", "service", &service, "-o", path]);
        let own: Vec<&str> = listed.split_whitespace().collect();
        assert_eq!(own.len(), families, "{listed}");
        cluster.wait_for(&format!("{service} by name"), || is_named(cluster, &asking, &service, &own));
        for address in own {
            cluster.wait_for(&format!("{service} at {address}"), || {
                fetch(cluster, &asking, address, 80, "name").is_ok_and(|name| name == asked)
            });
        }
    }
}

#[test]
fn a_host_without_any_network_runs_pods_and_reaches_their_services() {
    if !harness::is_possible() {
        return;
    }
    let cluster = Cluster::with(Options { nodes: 1, is_unplugged: true, ..Options::default() });
    cluster.wait_for("the server to call itself ready", || cluster.nodes[0].log().contains("ready after"));
    let first = pods();
    cluster.apply(first.split_once("metadata: {name: pod-2").expect("two pods").0.rsplit_once("---").expect("one").0);
    cluster.wait_for("the pod", || cluster.ready_pods("app=web") == 1);
    let service = cluster.kubectl(&["get", "service", "web-1", "-o", "jsonpath={.spec.clusterIP}"]);
    let page = format!("http://{service}/name");
    cluster
        .wait_for("the host to reach the service", || cluster.nodes[0].host.fetch(&page).as_deref() == Some("pod-1"));
    cluster.wait_for("the pod to find it by name", || is_named(&cluster, "pod-1", "web-1", &[&service]));
    assert_eq!(fetch(&cluster, "pod-1", &service, 80, "name").as_deref().map(str::trim), Ok("pod-1"));
    let own = cluster.kubectl(&[
        "exec",
        "pod-1",
        "--",
        "sh",
        "-c",
        "nc -w 2 $KUBERNETES_SERVICE_HOST 443 </dev/null && echo open",
    ]);
    assert_eq!(own, "open", "the pod does not reach the API server");
}

#[test]
fn pods_reach_each_other_across_subnets() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(1);
    cluster.add_far_node(2, &[]);
    cluster.wait_for_nodes(2);
    all_reach_each_other(&cluster, 1);
    for node in &cluster.nodes {
        let routes = node.host.run(&["ip", "route", "show"]);
        assert!(routes.lines().any(|route| route.starts_with("10.244.") && route.contains("knarr-vx")), "{routes}");
    }
}

#[test]
fn pods_and_services_have_addresses_of_both_families() {
    if !harness::is_possible() {
        return;
    }
    let networks =
        ["--cluster-cidr", "10.244.0.0/16,fd00:244::/48", "--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112"];
    let mut cluster = Cluster::with(Options { nodes: 2, server: networks.to_vec(), ..Options::default() });
    all_reach_each_other(&cluster, 2);
    // By routes on one subnet, by a tunnel to another.
    cluster.kubectl(&["delete", "pod", "pod-2", "--now"]);
    cluster.kubectl(&["delete", "node", "node-2"]);
    drop(cluster.nodes.pop());
    cluster.add_far_node(2, &[]);
    cluster.wait_for_nodes(2);
    all_reach_each_other(&cluster, 2);
}

#[test]
fn a_node_without_a_network_waits_for_one() {
    const PLUGINS: &str = "/usr/lib/cni";
    if !harness::is_possible() {
        return;
    }
    if !Path::new(PLUGINS).join("bridge").exists() {
        harness::skip("Debian's containernetworking-plugins are not installed");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let configuration: &'static str = directory.path().to_string_lossy().into_owned().leak();
    let flags = vec!["--network", "none", "--cni-bin-dir", PLUGINS, "--cni-conf-dir", configuration];
    let cluster = Cluster::unready(Options { nodes: 1, server: flags, ..Options::default() });
    let ready = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")]}"#;
    let mut said = String::new();
    cluster.wait_for("the node to say what it lacks", || {
        said = cluster.kubectl(&["get", "nodes", "-o", ready]);
        said.contains("cni plugin not initialized")
    });
    assert!(said.contains("\"status\":\"False\"") && said.contains("KubeletNotReady"), "{said}");
    let network = r#"{"cniVersion": "0.4.0", "name": "other", "plugins": [
        {"type": "bridge", "bridge": "other0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;
    let network = network.replace("DATA", &directory.path().join("addresses").to_string_lossy());
    std::fs::write(directory.path().join("10-other.conflist"), network).expect("a configuration");
    cluster.wait_for_nodes(1);
    cluster.apply(&pods().replace("node-2", "node-1"));
    cluster.wait_for("the pods to be ready", || cluster.ready_pods("app=web") == 2);
    let links = cluster.nodes[0].host.run(&["ip", "-o", "link", "show"]);
    assert!(links.contains("other0") && !links.contains("knarr0"), "{links}");
    // Services and DNS work with any CNI plugin.
    let service = cluster.kubectl(&["get", "service", "web-2", "-o", "jsonpath={.spec.clusterIP}"]);
    cluster.wait_for("the service by name", || is_named(&cluster, "pod-1", "web-2", &[&service]));
    cluster
        .wait_for("the service", || fetch(&cluster, "pod-1", &service, 80, "name").is_ok_and(|name| name == "pod-2"));
    cluster.kubectl(&["delete", "pods", "--all", "--now"]);
}
