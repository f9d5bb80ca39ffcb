//! Checks the requirements at every start, and prints what is missing in one line.

use std::path::Path;

use anyhow::bail;
use knarr_network::cidr::Cidr;

use super::node::NodeArguments;
use crate::check::{self, CheckPlan, Listen, Verdict};

/// Fails if something is missing. `more` are addresses to listen on in addition to the kubelet's server.
/// `networks` are those of pods and Services.
pub fn check(node: &NodeArguments, data: &Path, more: Vec<Listen>, networks: Vec<Cidr>) -> anyhow::Result<()> {
    let mut listens = vec![Listen { what: "the node's endpoints", address: node.node_listen, flag: "--node-listen" }];
    listens.extend(more);
    verify(&CheckPlan {
        data: data.to_owned(),
        runs_pods: true,
        own_runtime: node.container_runtime_endpoint.is_none(),
        listens,
        networks,
    })
}

pub fn verify(plan: &CheckPlan) -> anyhow::Result<()> {
    let findings = check::quick(plan);
    if let Some(missing) = check::missing_summary(&findings) {
        bail!("{missing} (`knarr check` shows everything)");
    }
    for finding in findings.iter().filter(|finding| finding.verdict == Verdict::Poor) {
        tracing::warn!("{}: {}: {}", finding.name, finding.found, finding.remedy);
    }
    Ok(())
}
