//! `knarr check`: checks the requirements of this host.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use knarr_network::cidr::Cidr;

use super::{apiserver, common, network};
use crate::check::{self, CheckPlan, Listen, Verdict};
use crate::data_directory_lock;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Data directory.
    #[arg(long, default_value = common::DATA)]
    pub data_dir: PathBuf,
    /// Role of this host.
    #[arg(long, value_enum, default_value_t = Role::Server)]
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    Server,
    Agent,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // Ports on which Knarr itself listens are not in use by others.
    let is_running = data_directory_lock::find(&arguments.data_dir)?.is_some();
    let plan = CheckPlan {
        data: arguments.data_dir.clone(),
        runs_pods: true,
        own_runtime: true,
        listens: if is_running { Vec::new() } else { listens(arguments.role) },
        networks: if is_running { Vec::new() } else { networks(arguments.role) },
    };
    let findings = check::all(&plan);
    let rows: Vec<[String; 4]> = findings
        .iter()
        .map(|finding| {
            let verdict = match finding.verdict {
                Verdict::Good => "ok",
                Verdict::Poor => "poor",
                Verdict::Missing => "MISSING",
            };
            [finding.name.clone(), verdict.to_owned(), finding.found.clone(), finding.remedy.clone()]
        })
        .collect();
    print!("{}", common::table(["WHAT", "VERDICT", "FOUND", "WHAT TO DO"], &rows));
    match findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count() {
        0 => Ok(()),
        count => bail!("{count} of these must be fixed before Knarr can run here"),
    }
}

/// The default networks of pods and Services. An agent gets them from its server.
fn networks(role: Role) -> Vec<Cidr> {
    let all = if role == Role::Server { [network::PODS, apiserver::SERVICES].as_slice() } else { &[] };
    all.iter().filter_map(|network| network.parse().ok()).collect()
}

/// The default addresses to listen on.
fn listens(role: Role) -> Vec<Listen> {
    let listen = |what, port: u16, flag| Listen { what, address: ([0, 0, 0, 0], port).into(), flag };
    let mut all = vec![
        listen("the node's endpoints", 10250, "--node-listen"),
        listen("ingress", 80, "--ingress-http"),
        listen("ingress", 443, "--ingress-https"),
    ];
    if role == Role::Server {
        all.push(listen("the API server", 6443, "--listen"));
    }
    all
}
