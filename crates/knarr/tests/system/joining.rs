//! A second host joins with one command, and Services reach pods on both nodes.

use std::collections::BTreeSet;

use super::harness::{self, Cluster, IMAGE};

fn manifest() -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: web}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: {IMAGE}
        command: ["sh", "-c", "hostname > /www/index.html; echo $NODE >> /www/index.html; exec httpd -f -p 8080 -h /www"]
        env: [{{name: NODE, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}]
        readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080}}]
"#
    )
}

#[test]
fn a_node_joins_with_one_command_and_serves() {
    if !harness::is_possible() {
        return;
    }
    let cluster = Cluster::start(2);
    cluster.apply(&manifest());
    cluster.wait_for("a pod on each node", || cluster.ready_pods("app=web") == 2);

    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    for node in &cluster.nodes {
        let mut seen = BTreeSet::new();
        cluster.wait_for(&format!("{} to reach the pods of both nodes", node.name), || {
            let response = node.host.fetch(&format!("http://{address}/")).unwrap_or_default();
            seen.extend(response.lines().nth(1).map(str::to_owned));
            seen.len() == 2
        });
    }

    let pods = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]);
    for pod in pods.lines() {
        let name = "web.default.svc.cluster.local";
        cluster.wait_for(&format!("{pod} to find the service by its name"), || {
            cluster
                .try_kubectl(&["exec", pod, "--", "nslookup", name])
                .is_ok_and(|response| response.contains(&address))
        });
        let log = cluster.kubectl(&["logs", pod]);
        assert!(!log.contains("error"), "{log}");
    }
    for node in &cluster.nodes {
        check_rights(&cluster, &node.name);
    }
    nothing_listens_but_the_ports_of_the_threat_model(&cluster);
}

fn nothing_listens_but_the_ports_of_the_threat_model(cluster: &Cluster) {
    for (index, node) in cluster.nodes.iter().enumerate() {
        let table = node.host.run(&["cat", "/proc/self/net/tcp", "/proc/self/net/tcp6"]);
        let (local, open) = listening(&table);
        let mut expected = BTreeSet::from([53, 80, 443, 10250, 10256]);
        let mut expected_local = BTreeSet::from([10248, 10249]);
        if index == 0 {
            expected.insert(6443);
        } else {
            expected_local.insert(6444);
        }
        assert_eq!(open, expected, "{}: {table}", node.name);
        // The container runtime has one more, for streams that only who has a token from it can use.
        let others: Vec<&u16> = local.difference(&expected_local).collect();
        assert!(expected_local.is_subset(&local) && others.len() <= 1, "{}: {local:?}", node.name);
    }
}

/// The TCP ports that listen on loopback only, and those that others reach, of the kernel's tables.
fn listening(tables: &str) -> (BTreeSet<u16>, BTreeSet<u16>) {
    let (mut local, mut open) = (BTreeSet::new(), BTreeSet::new());
    for line in tables.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, address, _, "0A", ..] = columns.as_slice() else { continue };
        let (address, port) = address.split_once(':').expect("an address");
        let port = u16::from_str_radix(port, 16).expect("a port");
        // The kernel prints words in the order of this host's bytes.
        let is_loopback = address.ends_with("7F") || address == "00000000000000000000000001000000";
        if is_loopback {
            local.insert(port)
        } else {
            open.insert(port)
        };
    }
    local.retain(|port| !open.contains(port));
    (local, open)
}

/// A kubelet can read objects of its node only; its network components read the cluster-wide ones as their own user.
fn check_rights(cluster: &Cluster, node: &str) {
    let (kubelet, network) = (format!("system:node:{node}"), format!("knarr:node-network:{node}"));
    for (user, group, verb, resource, allowed) in [
        (&kubelet, "system:nodes", "list", "pods", false),
        (&kubelet, "system:nodes", "watch", "nodes", false),
        (&kubelet, "system:nodes", "list", "namespaces", false),
        (&kubelet, "system:nodes", "list", "networkpolicies", false),
        (&kubelet, "system:nodes", "list", "services", true),
        (&network, "knarr:node-network", "list", "pods", true),
        (&network, "knarr:node-network", "watch", "networkpolicies", true),
        (&network, "knarr:node-network", "list", "secrets", false),
        (&network, "knarr:node-network", "patch", "nodes", false),
        (&network, "knarr:node-network", "delete", "pods", false),
    ] {
        let (user_flag, group_flag) = (format!("--as={user}"), format!("--as-group={group}"));
        let question = ["auth", "can-i", verb, resource, "--all-namespaces", "--quiet", &user_flag, &group_flag];
        assert_eq!(cluster.try_kubectl(&question).is_ok(), allowed, "{user} may {verb} {resource}");
    }
}

#[test]
fn a_node_survives_its_token_and_its_server_s_absence() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(2);
    let listed = cluster.token(&["list"]);
    let id = listed.lines().nth(1).and_then(|line| line.split_whitespace().next()).expect("a token").to_owned();
    cluster.token(&["delete", &id]);
    cluster.apply(&manifest());
    cluster.wait_for("a pod on each node", || cluster.ready_pods("app=web") == 2);

    let started = "jsonpath={.items[*].status.containerStatuses[*].state.running.startedAt}";
    let before = cluster.kubectl(&["get", "pods", "-o", started]);
    cluster.nodes[0].stop();
    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    cluster.nodes[0].start();
    cluster.wait_for("the server to come back", || cluster.try_kubectl(&["get", "--raw", "/readyz"]).is_ok());
    cluster.wait_for_nodes(2);
    cluster.wait_for("the pods to be ready again", || cluster.ready_pods("app=web") == 2);
    assert_eq!(cluster.kubectl(&["get", "pods", "-o", started]), before, "a container was restarted");
}
