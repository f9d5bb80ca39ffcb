//! Checks whether this host meets the requirements of a node, and how to fix what is missing.
//!
//! `quick` runs at every start; `all` is for `knarr check`, which also tests the kernel and measures the disk.

mod disk;
pub mod hardening;
mod host;
mod kernel;
mod programs;

use std::net::SocketAddr;
use std::path::PathBuf;

use knarr_network::cidr::Cidr;

use crate::address::interface_addresses;

pub use programs::{INSTALL, find_in};

/// The result of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub name: String,
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// How to fix it; empty if nothing needs to be done.
    pub remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// It works, with limitations.
    Poor,
    /// It does not work.
    Missing,
}

/// What to check.
#[derive(Clone, Debug)]
pub struct CheckPlan {
    pub data: PathBuf,
    /// Whether pods run here, in our own runtime and network.
    pub runs_pods: bool,
    pub own_runtime: bool,
    /// Addresses to listen on, their purpose, and the flag to choose another.
    pub listens: Vec<Listen>,
    /// Networks of pods and Services, which must be unused.
    pub networks: Vec<Cidr>,
}

#[derive(Clone, Debug)]
pub struct Listen {
    pub what: &'static str,
    pub address: SocketAddr,
    pub flag: &'static str,
}

impl Finding {
    pub fn good(name: impl Into<String>, found: impl Into<String>) -> Self {
        Finding { name: name.into(), verdict: Verdict::Good, found: found.into(), remedy: String::new() }
    }

    pub fn poor(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { name: name.into(), verdict: Verdict::Poor, found: found.into(), remedy: remedy.into() }
    }

    pub fn missing(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { name: name.into(), verdict: Verdict::Missing, found: found.into(), remedy: remedy.into() }
    }
}

/// Checks that take no time.
pub fn quick(plan: &CheckPlan) -> Vec<Finding> {
    let mut findings = basics(plan, false);
    findings.extend(disk::no_room(&plan.data));
    findings
}

fn basics(plan: &CheckPlan, with_versions: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if plan.runs_pods {
        findings.push(host::root());
        findings.push(host::cgroups());
        findings.extend(programs::all(plan.own_runtime, with_versions));
    }
    findings.extend(plan.listens.iter().map(host::port));
    if !plan.networks.is_empty() {
        findings.push(host::networks(&plan.networks, &interface_addresses()));
    }
    findings
}

pub fn all(plan: &CheckPlan) -> Vec<Finding> {
    let mut findings = basics(plan, true);
    if plan.runs_pods {
        findings.extend(kernel::all());
    }
    findings.push(host::name());
    findings.push(host::address());
    findings.push(host::memory());
    findings.push(host::swap());
    findings.push(disk::space(&plan.data));
    findings.push(disk::sync_speed(&plan.data));
    findings
}

/// One line that says what is missing and how to fix it; `None` if nothing is missing.
pub fn missing_summary(findings: &[Finding]) -> Option<String> {
    let missing: Vec<&Finding> = findings.iter().filter(|finding| finding.verdict == Verdict::Missing).collect();
    if missing.is_empty() {
        return None;
    }
    let (packages, others): (Vec<&Finding>, Vec<&Finding>) =
        missing.into_iter().partition(|finding| finding.remedy.starts_with(programs::INSTALL));
    let mut parts = Vec::new();
    if !packages.is_empty() {
        let names: Vec<&str> = packages.iter().map(|finding| finding.name.as_str()).collect();
        let mut packages: Vec<&str> =
            packages.iter().map(|finding| finding.remedy[programs::INSTALL.len()..].trim()).collect();
        packages.sort_unstable();
        packages.dedup();
        let verb = if names.len() == 1 { "is" } else { "are" };
        parts.push(format!("{} {verb} missing: {}{}", names.join(", "), programs::INSTALL, packages.join(" ")));
    }
    parts.extend(others.iter().map(|finding| format!("{}: {}: {}", finding.name, finding.found, finding.remedy)));
    Some(parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_missing_is_printed_in_one_line() {
        let install = |package: &str| format!("{}{package}", programs::INSTALL);
        let findings = [
            Finding::good("root", "yes"),
            Finding::missing("runc", "not found", install("runc")),
            Finding::missing("nft", "not found", install("nftables")),
            Finding::missing(
                "port 6443",
                "in use",
                "stop the program that listens there, or choose another with --listen",
            ),
            Finding::poor("swap", "2 GiB", "swapoff -a"),
        ];
        assert_eq!(
            missing_summary(&findings).unwrap(),
            "runc, nft are missing: apt-get install nftables runc; \
             port 6443: in use: stop the program that listens there, or choose another with --listen"
        );
        assert_eq!(missing_summary(&findings[..1]), None);
    }
}
