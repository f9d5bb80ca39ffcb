//! A server and a node whose addresses change come back by themselves.

use crate::harness::{TestHost, wait_for};
use crate::servers::ThreeServers;

/// Gives a running host another address, as DHCP may.
fn renumber(host: &TestHost, address: &str) {
    host.run(&["ip", "address", "del", &format!("{}/16", host.address), "dev", "eth0"]);
    host.run(&["ip", "address", "add", &format!("{address}/16"), "dev", "eth0"]);
    host.run(&["ip", "route", "replace", "default", "via", "10.77.0.1"]);
}

#[test]
#[ignore = "takes minutes: run by `make faults`"]
fn a_server_and_a_node_with_new_addresses_come_back() {
    if !crate::is_possible() {
        return;
    }
    let mut servers = ThreeServers::start();
    servers.add_agent();
    // They look for their addresses themselves.
    for flag in ["--node-ip", "--advertise-address"] {
        servers.nodes[2].remove_flag(flag);
    }
    servers.nodes[2].stop();
    servers.nodes[2].start();
    servers.await_members();
    servers.agents[0].remove_flag("--node-ip");
    servers.agents[0].stop();
    servers.agents[0].start();
    servers.await_heartbeat();

    renumber(&servers.nodes[2].host, "10.77.0.113");
    wait_for("the server at its new address", || {
        let status = servers.try_knarr(0, &["status"]).unwrap_or_default();
        status
            .lines()
            .any(|line| line.contains("server-3") && line.contains("10.77.0.113") && line.contains(" healthy "))
    });
    servers.await_members();
    let endpoints = ["get", "endpointslice", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[0]}"];
    wait_for("the endpoints of the API", || {
        let found = servers.try_kubectl(0, &endpoints).unwrap_or_default();
        found.contains("10.77.0.113") && !found.contains("10.77.0.13 ") && !found.ends_with("10.77.0.13")
    });
    // The others learn its address, and it theirs: it counts when another is lost.
    servers.nodes[1].kill();
    wait_for("writes with one server less", || {
        servers.try_kubectl(0, &["create", "configmap", "moved", "--from-literal=key=value"]).is_ok()
    });
    servers.nodes[1].start();
    servers.await_members();

    renumber(&servers.agents[0].host, "10.77.0.150");
    wait_for("the node at its new address", || {
        let address = "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
        servers.try_kubectl(0, &["get", "node", "agent-1", "-o", address]).is_ok_and(|found| found == "10.77.0.150")
    });
    servers.await_heartbeat();
    wait_for("the kubelet at its new address", || {
        servers.try_kubectl(1, &["get", "--raw", "/api/v1/nodes/agent-1/proxy/healthz"]).is_ok_and(|text| text == "ok")
    });
}
