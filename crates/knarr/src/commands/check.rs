//! `knarr check`: whether this machine has what it needs.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use knarr_network::cidr::Cidr;

use super::{apiserver, common, network};
use crate::check::{self, Listen, Plan, Verdict};
use crate::running;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Where Knarr is to keep its files.
    #[arg(long, default_value = common::DATA)]
    pub data_dir: PathBuf,
    /// What the machine is to be.
    #[arg(long, value_enum, default_value_t = Role::Server)]
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    Server,
    Agent,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // What Knarr itself listens on is not taken by somebody else.
    let is_running = running::find(&arguments.data_dir)?.is_some();
    let plan = Plan {
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
        count => bail!("{count} of these must be mended before Knarr can run here"),
    }
}

/// Networks that pods and services are in when nothing else is said. An agent is told by its server.
fn networks(role: Role) -> Vec<Cidr> {
    let all = if role == Role::Server { [network::PODS, apiserver::SERVICES].as_slice() } else { &[] };
    all.iter().filter_map(|network| network.parse().ok()).collect()
}

/// What is listened on when nothing else is said.
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
