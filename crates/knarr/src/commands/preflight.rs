//! What every start looks at first: whether the machine has what is needed. One line says what it lacks.

use std::path::Path;

use anyhow::bail;
use knarr_network::cidr::Cidr;

use super::node::NodeArguments;
use crate::check::{self, Listen, Plan, Verdict};

/// Refuses to go on when something is missing. `more` is what is listened on beside the node's endpoints.
/// `networks` are those of pods and services.
pub fn check(node: &NodeArguments, data: &Path, more: Vec<Listen>, networks: Vec<Cidr>) -> anyhow::Result<()> {
    let mut listens = vec![Listen { what: "the node's endpoints", address: node.node_listen, flag: "--node-listen" }];
    listens.extend(more);
    verify(&Plan {
        data: data.to_owned(),
        runs_pods: true,
        own_runtime: node.container_runtime_endpoint.is_none(),
        listens,
        networks,
    })
}

pub fn verify(plan: &Plan) -> anyhow::Result<()> {
    let findings = check::quick(plan);
    if let Some(complaint) = check::complaint(&findings) {
        bail!("{complaint} (`knarr check` shows everything)");
    }
    for finding in findings.iter().filter(|finding| finding.verdict == Verdict::Poor) {
        tracing::warn!("{}: {}: {}", finding.name, finding.found, finding.remedy);
    }
    Ok(())
}
