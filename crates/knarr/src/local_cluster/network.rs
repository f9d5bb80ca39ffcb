//! The network of a cluster: a bridge on this host, and a namespace for each node with one interface on it.

use std::process::Command;

use anyhow::{Context as _, bail};

use super::spec::Spec;

/// Creates the bridge of a cluster, which makes its network known to others by its route.
pub fn create_bridge(spec: &Spec) -> anyhow::Result<()> {
    let bridge = spec.bridge();
    if !interface_exists(&bridge) {
        ip(&["link", "add", &bridge, "type", "bridge"])?;
    }
    ip(&["address", "replace", &format!("{}/24", spec.gateway()), "dev", &bridge])?;
    ip(&["link", "set", &bridge, "up"])
}

/// Creates the bridge in a network namespace that is empty.
pub fn create_first(spec: &Spec) -> anyhow::Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    create_bridge(spec)
}

/// Creates what is missing of a cluster's network.
pub fn create(spec: &Spec) -> anyhow::Result<()> {
    create_bridge(spec)?;
    for number in 1..=spec.nodes {
        plug(spec, number)?;
    }
    if !spec.is_offline {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .context("cannot forward packets of the cluster's nodes")?;
    }
    nft(&rules(spec))
}

fn plug(spec: &Spec, number: u8) -> anyhow::Result<()> {
    let (namespace, port) = (spec.namespace(number), spec.port(number));
    if !std::path::Path::new("/run/netns").join(&namespace).exists() {
        ip(&["netns", "add", &namespace])?;
    }
    if !interface_exists(&port) {
        ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
    }
    ip(&["link", "set", &port, "master", &spec.bridge(), "up"])?;
    let within = |arguments: &[&str]| ip(&[&["-n", &namespace], arguments].concat());
    within(&["link", "set", "lo", "up"])?;
    within(&["address", "replace", &format!("{}/24", spec.address(number)), "dev", "eth0"])?;
    within(&["link", "set", "eth0", "up"])?;
    within(&["route", "replace", "default", "via", &spec.gateway().to_string()])
}

/// Removes a cluster's network.
pub fn delete(spec: &Spec) -> anyhow::Result<()> {
    for number in 1..=spec.nodes {
        let namespace = spec.namespace(number);
        if std::path::Path::new("/run/netns").join(&namespace).exists() {
            ip(&["netns", "delete", &namespace])?;
        }
        // The kernel removes the interface with the namespace, a moment later.
        if interface_exists(&spec.port(number)) {
            // It may vanish between both calls.
            let _ = ip(&["link", "delete", &spec.port(number)]);
        }
    }
    if interface_exists(&spec.bridge()) {
        ip(&["link", "delete", &spec.bridge()])?;
    }
    let table = spec.table();
    nft(&format!("table ip {table} {{}}\ndelete table ip {table}\n"))
}

/// Rules for packets between the cluster and other networks: translated to this host's address, or dropped. Nobody outside
/// opens connections into the cluster, though this host forwards packets: only this host uses its ports. Nor does anybody outside
/// reach its registry: this host would accept packets for the bridge's address on any interface.
fn rules(spec: &Spec) -> String {
    let (table, subnet, bridge, gateway) = (spec.table(), spec.subnet(), spec.bridge(), spec.gateway());
    let input = format!(
        "chain input {{ type filter hook input priority filter; policy accept; \
         ip daddr {gateway} iifname != {{ {bridge}, lo }} drop; }}"
    );
    let chain = if spec.is_offline {
        format!(
            "chain forward {{ type filter hook forward priority filter; policy accept; \
             iifname {bridge} oifname != {bridge} drop; oifname {bridge} iifname != {bridge} drop; }}"
        )
    } else {
        format!(
            "chain forward {{ type filter hook forward priority filter; policy accept; \
             oifname {bridge} iifname != {bridge} ct state new,invalid drop; }}\n\
             chain postrouting {{ type nat hook postrouting priority srcnat; policy accept; \
             ip saddr {subnet} oifname != {bridge} masquerade; }}"
        )
    };
    format!("table ip {table} {{}}\ndelete table ip {table}\ntable ip {table} {{\n{input}\n{chain}\n}}\n")
}

/// The destinations of this host's routes.
pub fn routes() -> anyhow::Result<Vec<String>> {
    let listed = run(Command::new("ip").args(["-4", "route", "show"]))?;
    Ok(listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

fn interface_exists(name: &str) -> bool {
    // `/sys` shows the interfaces of the namespace it was mounted in, which need not be this one.
    run(Command::new("ip").args(["link", "show", "dev", name])).is_ok()
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    run(Command::new("ip").args(arguments)).map(drop)
}

fn nft(rules: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(rules.as_bytes())?;
    run(Command::new("nft").arg("-f").arg(file.path())).map(drop)
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_outside_opens_connections_into_a_cluster() {
        for is_offline in [false, true] {
            let spec = Spec {
                name: "a".into(),
                id: "0badcafe".into(),
                nodes: 1,
                servers: 1,
                network: 7,
                is_offline,
                ports: Vec::new(),
                registry: None,
                api_port: None,
                server_flags: Vec::new(),
                agent_flags: Vec::new(),
            };
            let rules = rules(&spec);
            let bridge = spec.bridge();
            let what = if is_offline { "" } else { " ct state new,invalid" };
            assert!(rules.contains(&format!("oifname {bridge} iifname != {bridge}{what} drop;")), "{rules}");
            assert_eq!(rules.contains("masquerade"), !is_offline);
            assert!(rules.contains(&format!("ip daddr 10.190.7.1 iifname != {{ {bridge}, lo }} drop;")), "{rules}");
        }
    }
}
