//! The host: permissions, cgroups, ports, name, address, memory.

use std::net::{IpAddr, TcpListener};

use knarr_cri::{Privileges, in_user_namespace};
use knarr_network::cidr::Cidr;

use super::{Finding, Listen, Verdict};
use crate::address::{FALLBACK_ADDRESS, own_address};

/// Controllers that pods' limits need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

pub fn root() -> Finding {
    if nix::unistd::geteuid().is_root() {
        return Finding::good("root", "yes");
    }
    Finding::missing(
        "root",
        "no: a node mounts file systems, creates networks and runs containers",
        "run as root, for example with sudo",
    )
}

pub fn cgroups() -> Finding {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let unified = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let found = check_cgroups(&mounts, &unified);
    if in_user_namespace() { of_user_namespace(found, Privileges::read().cgroups) } else { found }
}

/// In a user namespace, a node does without the cgroups that it does not get.
fn of_user_namespace(found: Finding, is_delegated: bool) -> Finding {
    let remedy = "delegate a cgroup of version 2 with all controllers to the user";
    match (found.verdict, is_delegated) {
        (Verdict::Good, true) => found,
        (_, true) => Finding::poor("cgroups", found.found, remedy),
        (_, false) => Finding::poor("cgroups", "none is delegated to this user namespace: pods have no limits", remedy),
    }
}

fn check_cgroups(mounts: &str, unified: &str) -> Finding {
    let kinds: Vec<(&str, &str)> = mounts
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            Some((left.split(' ').nth(4)?, right.split(' ').next()?))
        })
        .filter(|(_, kind)| matches!(*kind, "cgroup" | "cgroup2"))
        .collect();
    let (version, present): (&str, Vec<&str>) = match kinds.iter().find(|(_, kind)| *kind == "cgroup") {
        Some(_) => {
            let directories = kinds.iter().filter(|(_, kind)| *kind == "cgroup");
            let names = directories.flat_map(|(point, _)| point.rsplit('/').next().unwrap_or_default().split(','));
            ("version 1", names.collect())
        }
        None if !kinds.is_empty() => ("version 2", unified.split_whitespace().collect()),
        None => {
            let remedy = "mount -t cgroup2 none /sys/fs/cgroup";
            return Finding::missing("cgroups", "no hierarchy is mounted", remedy);
        }
    };
    let lacking: Vec<&str> = CONTROLLERS.into_iter().filter(|name| !present.contains(name)).collect();
    if lacking.is_empty() {
        return Finding::good("cgroups", version);
    }
    let remedy = "start the kernel with cgroup_enable=memory and without cgroup_disable=…";
    Finding::missing("cgroups", format!("{version} without {}", lacking.join(", ")), remedy)
}

/// Whether an address is free to listen on.
pub fn port(listen: &Listen) -> Finding {
    let name = format!("port {}", listen.address.port());
    match TcpListener::bind(listen.address) {
        Ok(_) => Finding::good(name, format!("free for {}", listen.what)),
        Err(error) => Finding::missing(
            name,
            format!("cannot listen on {} for {} ({error})", listen.address, listen.what),
            format!("stop the program that listens there, or choose another address with {}", listen.flag),
        ),
    }
}

/// Whether the host's name is a valid name of a Node object.
pub fn name() -> Finding {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_lowercase();
    if is_name(&name) {
        return Finding::good("name", name);
    }
    Finding::missing("name", format!("{name:?} is not a valid node name"), "choose one with --node-name")
}

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let parts = name.split('.');
    name.len() <= 253
        && parts.into_iter().all(|part| {
            part.bytes().all(|byte| is_plain(byte) || byte == b'-')
                && part.bytes().next().is_some_and(is_plain)
                && part.bytes().next_back().is_some_and(is_plain)
        })
}

pub fn address() -> Finding {
    match own_address() {
        address if address.is_loopback() || address == FALLBACK_ADDRESS => Finding::poor(
            "address",
            "only loopback: other nodes cannot join",
            "connect the host to a network, or use it as a single node",
        ),
        address => Finding::good("address", address.to_string()),
    }
}

/// Whether the networks of pods and Services are unused. An interface of another program there would get their packets.
pub fn networks(networks: &[Cidr], interfaces: &[(String, IpAddr)]) -> Finding {
    let is_ours = |name: &str| name == "lo" || name.starts_with("knarr");
    let overlap = interfaces.iter().find_map(|(name, address)| {
        let network = networks.iter().find(|network| network.contains(*address))?;
        (!is_ours(name)).then_some((name, address, network))
    });
    match overlap {
        None => Finding::good("networks", join(networks)),
        Some((name, address, network)) => Finding::poor(
            "networks",
            format!("{name} has {address}, which is within {network}"),
            format!(
                "remove what another program left (ip link delete {name}), or choose networks of your own with --cluster-cidr \
                 and --service-cluster-ip-range"
            ),
        ),
    }
}

fn join(networks: &[Cidr]) -> String {
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub fn memory() -> Finding {
    let total = meminfo("MemTotal:") / 1024;
    match total {
        0..512 => Finding::poor("memory", format!("{total} MiB"), "512 MiB leave room for pods"),
        _ => Finding::good("memory", format!("{total} MiB")),
    }
}

pub fn swap() -> Finding {
    match meminfo("SwapTotal:") / 1024 {
        0 => Finding::good("swap", "none"),
        total => Finding::poor("swap", format!("{total} MiB: memory limits are softer than they look"), "swapoff -a"),
    }
}

/// In kibibytes.
fn meminfo(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_in_a_user_namespace_does_without_cgroups() {
        let (good, lacking) = (Finding::good("cgroups", "version 2"), Finding::missing("cgroups", "without cpu", "x"));
        for (found, is_delegated, verdict) in [
            (&good, true, Verdict::Good),
            (&good, false, Verdict::Poor),
            (&lacking, true, Verdict::Poor),
            (&lacking, false, Verdict::Poor),
        ] {
            assert_eq!(of_user_namespace(found.clone(), is_delegated).verdict, verdict, "{found:?} {is_delegated}");
        }
    }

    #[test]
    fn cgroups_of_both_versions_are_checked() {
        let line = |point: &str, kind: &str| format!("30 1 0:26 / {point} rw - {kind} none rw\n");
        let old =
            ["cpu,cpuacct", "memory", "pids"].map(|name| line(&format!("/sys/fs/cgroup/{name}"), "cgroup")).concat();
        let new = line("/sys/fs/cgroup", "cgroup2");
        for (mounts, unified, verdict, found) in [
            (old.as_str(), "", Verdict::Good, "version 1"),
            (new.as_str(), "cpuset cpu io memory pids", Verdict::Good, "version 2"),
            (new.as_str(), "cpuset cpu io pids", Verdict::Missing, "version 2 without memory"),
            ("", "", Verdict::Missing, "no hierarchy is mounted"),
        ] {
            let finding = check_cgroups(mounts, unified);
            assert_eq!((finding.verdict, finding.found.as_str()), (verdict, found));
        }
    }

    #[test]
    fn networks_of_pods_and_services_must_be_unused() {
        let ours: Vec<Cidr> = ["10.244.0.0/16", "10.96.0.0/12"].map(|text| text.parse().unwrap()).into();
        for (interface, address, verdict) in [
            ("eth0", "192.0.2.7", Verdict::Good),
            ("lo", "10.96.0.10", Verdict::Good),
            ("knarr0", "10.244.0.1", Verdict::Good),
            ("cni0", "10.244.0.1", Verdict::Poor),
            ("eth0", "10.100.3.4", Verdict::Poor),
        ] {
            let finding = networks(&ours, &[(interface.to_owned(), address.parse().unwrap())]);
            assert_eq!(finding.verdict, verdict, "{interface} {address}: {}", finding.found);
        }
    }

    #[test]
    fn node_names_are_object_names() {
        for (name, expected) in
            [("node-1", true), ("a.example", true), ("", false), ("a_b", false), ("-a", false), ("a.", false)]
        {
            assert_eq!(is_name(name), expected, "{name:?}");
        }
    }
}
