//! Kernel features, tried in a network namespace of a temporary thread, so that nothing is left behind.

use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

use super::Finding;

pub fn all() -> Vec<Finding> {
    let mut findings = vec![overlay()];
    findings.extend(network());
    findings
}

fn overlay() -> Finding {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = known.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if is_known || modprobe("overlay") {
        return Finding::good("overlay files", "yes");
    }
    Finding::missing(
        "overlay files",
        "not supported by the kernel",
        "load the module overlay, or use a kernel that has it",
    )
}

fn modprobe(module: &str) -> bool {
    let loaded = Command::new("modprobe").arg(module).stdout(Stdio::null()).stderr(Stdio::null()).status();
    loaded.is_ok_and(|status| status.success())
}

/// The feature, a command that needs it, and the modules that provide it.
const TRIALS: [(&str, &[&str], &str); 5] = [
    ("bridges", &["ip", "link", "add", "name", "knarr-b", "type", "bridge"], "bridge"),
    ("pairs of interfaces", &["ip", "link", "add", "name", "knarr-v", "type", "veth"], "veth"),
    (
        "tunnels (vxlan)",
        &["ip", "link", "add", "name", "knarr-t", "type", "vxlan", "id", "1", "dstport", "8472"],
        "vxlan",
    ),
    ("nftables", &["nft", "add", "table", "ip", "t"], "nf_tables"),
    (
        "translation of addresses",
        &["nft", "add chain ip t c { type nat hook postrouting priority srcnat ; } ; add rule ip t c masquerade"],
        "nf_nat nft_masq nft_chain_nat",
    ),
];

fn network() -> Vec<Finding> {
    let tried = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).ok()?;
        Some(TRIALS.map(|(name, command, modules)| finding(name, attempt(command), modules)).to_vec())
    });
    match tried.join() {
        Ok(Some(findings)) => findings,
        _ => vec![Finding::poor("network", "cannot be tested without root", "run `knarr check` as root")],
    }
}

fn attempt(command: &[&str]) -> Result<(), String> {
    let output = Command::new(command[0]).args(&command[1..]).output().map_err(|error| error.to_string())?;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(error.lines().next().unwrap_or_default().to_owned()) }
}

fn finding(name: &str, tried: Result<(), String>, modules: &str) -> Finding {
    match tried {
        Ok(()) => Finding::good(name, "yes"),
        Err(error) if modules == "vxlan" => {
            Finding::poor(name, format!("{error}: nodes must share a subnet"), format!("modprobe {modules}"))
        }
        Err(error) => Finding::missing(name, error, format!("modprobe {modules}")),
    }
}
