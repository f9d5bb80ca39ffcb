//! New keys: the certificate authority and the encryption key are replaced while everything runs, and clocks that were wrong
//! leave no certificates behind that nobody accepts. The node is behind a firewall: servers reach it through its tunnels.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Node, wait_for};
use crate::pods::Pods;
use crate::servers::ThreeServers;

const DAY: i64 = 24 * 3600;

#[test]
#[ignore = "takes minutes: run by `make faults`"]
fn a_node_behind_a_firewall_gets_new_keys_without_restarting_pods() {
    if !crate::is_possible() {
        return;
    }
    let mut servers = ThreeServers::start();
    servers.add_agent();
    let pods = Pods::start(&servers);
    close_ports(&servers.agents[0]);
    check_tunnels(&servers);

    servers.kubectl(0, &["create", "secret", "generic", "hidden", "--from-literal=key=in-the-clear"]);
    for round in 0..2 {
        let done = servers.knarr(0, &["secrets-encryption", "rotate"]);
        assert!(done.ends_with("All servers use the new keys."), "{done}");
        check_encryption(&servers, round);
    }

    let old = authorities(&servers);
    let stolen = servers.nodes[0].data.with_extension("old.yaml");
    std::fs::copy(servers.nodes[0].data.join("kubeconfig.yaml"), &stolen).expect("a kubeconfig");
    let done = servers.knarr(1, &["certificate", "rotate-ca"]);
    assert!(done.contains("step 3 of 3") && done.ends_with("All servers use the new keys."), "{done}");
    let new = authorities(&servers);
    assert!(new.iter().all(|text| *text == new[0] && *text != old[0]), "all have the same new authority");
    assert_eq!(new[0].matches("BEGIN CERTIFICATE").count(), 1, "the old one is gone");
    wait_for("the node to drop the old authority", || read(servers.agents[0].data.join("pki/ca.crt")) == new[0]);
    servers.await_members();
    // A certificate of the old authority is nobody's any more.
    let refused = servers.client.output(&[
        "kubectl",
        "--kubeconfig",
        &stolen.to_string_lossy(),
        "--server=https://10.77.0.12:6443",
        "--insecure-skip-tls-verify",
        "get",
        "nodes",
    ]);
    assert!(!refused.status.success(), "an old certificate is still accepted");
    servers.await_heartbeat();
    check_tunnels(&servers);
    check_encryption(&servers, 1);
    pods.check(&servers);
}

/// Lets nothing into the node that it has not opened itself.
fn close_ports(agent: &Node) {
    for rule in [
        "add table inet closed",
        "add chain inet closed input { type filter hook input priority -10; policy accept; }",
        "add rule inet closed input iifname eth0 ct state new tcp dport != 9 drop",
    ] {
        agent.host.run(&["nft", rule]);
    }
}

/// Every server reaches the kubelet and the pods of the node, though neither can be connected to.
fn check_tunnels(servers: &ThreeServers) {
    let agent = &servers.agents[0].host.address;
    let direct = servers.client.output(&["timeout", "2", "bash", "-c", &format!("exec 3<>/dev/tcp/{agent}/10250")]);
    assert!(!direct.status.success(), "the port of the kubelet is closed");
    for server in 0..3 {
        wait_for("a server to reach the kubelet", || {
            servers
                .try_kubectl(server, &["get", "--raw", "/api/v1/nodes/agent-1/proxy/healthz"])
                .is_ok_and(|text| text == "ok")
        });
        let printed = servers.kubectl(server, &["exec", "deployment/lasting", "--", "echo", "through the tunnel"]);
        assert_eq!(printed, "through the tunnel");
        servers.kubectl(server, &["logs", "deployment/lasting"]);
        // The proxy of a pod leads into the pod network, of which these servers have no part.
        let pod =
            servers.kubectl(server, &["get", "pods", "-l", "app=lasting", "-o", "jsonpath={.items[0].metadata.name}"]);
        let refused =
            servers.try_kubectl(server, &["get", "--raw", &format!("/api/v1/namespaces/default/pods/{pod}:81/proxy/")]);
        let refused = refused.expect_err("nothing listens there");
        assert!(refused.contains("refused"), "{refused}");
    }
}

/// Secrets are encrypted with the key of the configuration that all servers have, and all read them.
fn check_encryption(servers: &ThreeServers, round: usize) {
    let configurations: Vec<String> =
        servers.nodes.iter().map(|node| read(node.data.join("encryption.yaml"))).collect();
    assert!(configurations.iter().all(|text| *text == configurations[0]), "servers have different keys");
    assert_eq!(configurations[0].matches("name: key-").count(), 1, "round {round}: old keys are gone");
    let name = configurations[0].split("name: ").nth(1).and_then(|rest| rest.lines().next()).expect("a key");
    let stored = format!("k8s:enc:secretbox:v1:{name}:");
    let database = servers.nodes[0].data.join("etcd/data/member/snap/db");
    wait_for("the Secret to be encrypted on disk", || {
        let found = Command::new("grep").args(["-c", "-a", "-F", &stored]).arg(&database).output().expect("grep runs");
        found.status.success()
    });
    for server in 0..3 {
        let value = servers.kubectl(server, &["get", "secret", "hidden", "-o", "jsonpath={.data.key}"]);
        assert_eq!(value, "aW4tdGhlLWNsZWFy");
    }
}

fn authorities(servers: &ThreeServers) -> Vec<String> {
    servers.nodes.iter().map(|node| read(node.data.join("pki/ca.crt"))).collect()
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_default()
}

#[test]
#[ignore = "takes minutes: run by `make faults`"]
fn certificates_follow_a_clock_that_was_wrong() {
    if !crate::is_possible() {
        return;
    }
    let mut servers = ThreeServers::start();
    let node = servers.nodes[1].data.clone();
    let files = ["pki/apiserver.crt", "pki/admin.crt", "pki/etcd/server.crt"];
    let contents = || files.map(|file| read(node.join(file)));
    let before = contents();
    // Most of the certificates' year is over: they are renewed, for a time that has not come for the others.
    servers.clocks[1].step(servers.nodes[1].pid(), 300 * DAY);
    wait_for("renewed certificates", || contents().iter().zip(&before).all(|(new, old)| new != old));
    let early = contents();
    servers.clocks[1].step(servers.nodes[1].pid(), 0);
    wait_for("certificates of the right time", || contents().iter().zip(&early).all(|(new, old)| new != old));
    servers.await_members();
    servers.kubectl(1, &["create", "configmap", "right-again", "--from-literal=key=value"]);
}
