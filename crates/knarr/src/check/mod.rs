//! Whether this machine has what a node needs, and how to get what it lacks.
//!
//! `quick` is what every start looks at; `all` is for `knarr check`, which also tries the kernel and measures the disk.

mod disk;
mod kernel;
mod machine;
mod programs;

use std::net::SocketAddr;
use std::path::PathBuf;

use knarr_network::cidr::Cidr;

use crate::address::interface_addresses;

/// What one look found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub name: String,
    pub verdict: Verdict,
    /// What is there.
    pub found: String,
    /// What to do about it; empty when nothing needs to be done.
    pub remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// It works, with less.
    Poor,
    /// It does not work without.
    Missing,
}

/// What is to be looked at.
#[derive(Clone, Debug)]
pub struct Plan {
    pub data: PathBuf,
    /// Pods are to run here, in a runtime of our own, on our own network.
    pub runs_pods: bool,
    pub own_runtime: bool,
    /// Addresses that will be listened on, and what for; with a flag to choose another.
    pub listens: Vec<Listen>,
    /// Networks of pods and services, which must be nobody else's.
    pub networks: Vec<Cidr>,
}

#[derive(Clone, Debug)]
pub struct Listen {
    pub what: &'static str,
    pub address: SocketAddr,
    pub flag: &'static str,
}

impl Finding {
    fn good(name: impl Into<String>, found: impl Into<String>) -> Self {
        Finding { name: name.into(), verdict: Verdict::Good, found: found.into(), remedy: String::new() }
    }

    fn poor(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { name: name.into(), verdict: Verdict::Poor, found: found.into(), remedy: remedy.into() }
    }

    fn missing(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { name: name.into(), verdict: Verdict::Missing, found: found.into(), remedy: remedy.into() }
    }
}

/// What takes no time to look at.
pub fn quick(plan: &Plan) -> Vec<Finding> {
    let mut findings = basics(plan, false);
    findings.extend(disk::no_room(&plan.data));
    findings
}

fn basics(plan: &Plan, with_versions: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if plan.runs_pods {
        findings.push(machine::root());
        findings.push(machine::cgroups());
        findings.extend(programs::all(plan.own_runtime, with_versions));
    }
    findings.extend(plan.listens.iter().map(machine::port));
    if !plan.networks.is_empty() {
        findings.push(machine::networks(&plan.networks, &interface_addresses()));
    }
    findings
}

pub fn all(plan: &Plan) -> Vec<Finding> {
    let mut findings = basics(plan, true);
    if plan.runs_pods {
        findings.extend(kernel::all());
    }
    findings.push(machine::name());
    findings.push(machine::address());
    findings.push(machine::memory());
    findings.push(machine::swap());
    findings.push(disk::space(&plan.data));
    findings.push(disk::sync_speed(&plan.data));
    findings
}

/// One line that says what is missing and how to get it; `None` when nothing is.
pub fn complaint(findings: &[Finding]) -> Option<String> {
    let missing: Vec<&Finding> = findings.iter().filter(|finding| finding.verdict == Verdict::Missing).collect();
    if missing.is_empty() {
        return None;
    }
    let (packages, others): (Vec<&Finding>, Vec<&Finding>) =
        missing.into_iter().partition(|finding| finding.remedy.starts_with(programs::INSTALL));
    let mut parts = Vec::new();
    if !packages.is_empty() {
        let names: Vec<&str> = packages.iter().map(|finding| finding.name.as_str()).collect();
        let mut wanted: Vec<&str> =
            packages.iter().map(|finding| finding.remedy[programs::INSTALL.len()..].trim()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let verb = if names.len() == 1 { "is" } else { "are" };
        parts.push(format!("{} {verb} missing: {}{}", names.join(", "), programs::INSTALL, wanted.join(" ")));
    }
    parts.extend(others.iter().map(|finding| format!("{}: {}: {}", finding.name, finding.found, finding.remedy)));
    Some(parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_said_in_one_line() {
        let install = |package: &str| format!("{}{package}", programs::INSTALL);
        let findings = [
            Finding::good("root", "yes"),
            Finding::missing("runc", "not found", install("runc")),
            Finding::missing("nft", "not found", install("nftables")),
            Finding::missing("port 6443", "taken", "end what listens there or choose another with --listen"),
            Finding::poor("swap", "2 GiB", "swapoff -a"),
        ];
        assert_eq!(
            complaint(&findings).unwrap(),
            "runc, nft are missing: apt-get install nftables runc; \
             port 6443: taken: end what listens there or choose another with --listen"
        );
        assert_eq!(complaint(&findings[..1]), None);
    }
}
