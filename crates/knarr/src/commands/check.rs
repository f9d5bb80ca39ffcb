//! `knarr check`: checks the requirements of this host, or its hardening.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, FromArgMatches as _};
use knarr_network::cidr::Cidr;
use knarr_store::Store;

use super::{apiserver, common, datastore, network};
use crate::check::hardening::{self, CONTROLS, Evaluated, State};
use crate::check::{self, CheckPlan, Finding, Listen, Verdict};
use crate::data_directory_lock;
use crate::output;
use crate::paths;
use crate::upgrade::SharedStore;

/// How long reading all objects of an etcd may take.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Data directory.
    #[arg(long, default_value = common::DATA)]
    pub data_dir: PathBuf,
    /// Role of this host; by default that of the Knarr that used the data directory, or server.
    #[arg(long, value_enum)]
    pub role: Option<Role>,
    /// Check instead whether this version can use the store and the configuration file of another one, which may be running.
    #[arg(long, conflicts_with = "hardening")]
    pub upgrade: bool,
    /// Check how this host follows the CIS Kubernetes Benchmark instead.
    #[arg(long)]
    pub hardening: bool,
    /// Controls that may fail, by their identifiers.
    #[arg(long, value_delimiter = ',', requires = "hardening")]
    pub accept: Vec<String>,
    /// Output format of --hardening.
    #[arg(long, short, value_enum, requires = "hardening", default_value_t = Output::Table)]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    Table,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    Server,
    Agent,
}

pub fn run(arguments: &Arguments, file: Option<PathBuf>) -> anyhow::Result<()> {
    if arguments.hardening {
        return common::block_on(check_hardening(arguments.clone()));
    }
    if arguments.upgrade {
        return common::block_on(check_upgrade(arguments, file));
    }
    check_requirements(arguments)
}

async fn check_upgrade(arguments: &Arguments, file: Option<PathBuf>) -> anyhow::Result<()> {
    let (data, role) = (&arguments.data_dir, role(arguments));
    let shared = match role {
        Role::Server => read_shared_store(data, file.as_ref()).await,
        Role::Agent => None,
    };
    let findings = crate::upgrade::check(data, role.name(), file, shared, &super::command());
    print_findings(&findings, "this version takes over")
}

/// Reads the objects that an etcd keeps for the server of this host; `None` if none does.
async fn read_shared_store(data: &Path, file: Option<&PathBuf>) -> Option<anyhow::Result<SharedStore>> {
    let reading = async {
        let member = crate::servers::connect_store(data).await?.map(|store| Arc::new(store) as Arc<dyn Store>);
        let store = match (member, configured_datastore(file)) {
            (Some(store), _) => store,
            (None, Some(arguments)) => datastore::open(&arguments).await?,
            (None, None) => return Ok(None),
        };
        Ok(Some(SharedStore { entries: store.count("/"), revision: store.revision() }))
    };
    match tokio::time::timeout(STORE_TIMEOUT, reading).await {
        Ok(read) => read.transpose(),
        Err(_) => Some(Err(anyhow::anyhow!("etcd did not respond within {} s", STORE_TIMEOUT.as_secs()))),
    }
}

/// The flags of the API server, if they name an etcd. A file that is invalid is found by another check.
fn configured_datastore(file: Option<&PathBuf>) -> Option<apiserver::Arguments> {
    let config = file.map(|path| format!("--config={}", path.display()));
    let typed = ["knarr".to_owned(), "server".to_owned()].into_iter().chain(config).map(Into::into).collect();
    let merged = crate::configuration::with_file(typed, &super::command()).ok()?;
    let matches = super::command().try_get_matches_from(merged.words).ok()?;
    match super::Command::from_arg_matches(&matches).ok()? {
        super::Command::Server(arguments) => {
            Some(arguments.apiserver).filter(|arguments| !arguments.datastore.is_empty())
        }
        _ => None,
    }
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Agent => "agent",
            Role::Server => "server",
        }
    }
}

fn role(arguments: &Arguments) -> Role {
    let found = if paths::role(&arguments.data_dir) == "agent" { Role::Agent } else { Role::Server };
    arguments.role.unwrap_or(found)
}

async fn check_hardening(arguments: Arguments) -> anyhow::Result<()> {
    let unknown = arguments.accept.iter().find(|id| !CONTROLS.iter().any(|control| control.id == id.as_str()));
    if let Some(unknown) = unknown {
        bail!("unknown control {unknown:?}");
    }
    let facts = hardening::collect(&arguments.data_dir, role(&arguments).name(), super::command()).await?;
    let evaluated = hardening::evaluate(&facts);
    match arguments.output {
        Output::Json => println!("{:#}", hardening::to_json(&evaluated)),
        Output::Table => print_controls(&evaluated),
    }
    match hardening::failed(&evaluated, &arguments.accept).as_slice() {
        [] => Ok(()),
        failed => bail!("{} controls fail: {}", failed.len(), failed.join(", ")),
    }
}

/// Prints the controls by section.
fn print_controls(evaluated: &[Evaluated]) {
    for section in evaluated.chunk_by(|one, next| one.control.section == next.control.section) {
        let rows: Vec<[String; 4]> = section.iter().map(row).collect();
        let heading = section.first().map_or("", |one| one.control.section);
        println!("{heading}\n{}", output::table(["CONTROL", "STATE", "WHAT", "FOUND; WHAT TO DO"], &rows));
    }
}

fn row(one: &Evaluated) -> [String; 4] {
    let Evaluated { control, outcome } = one;
    let found = match outcome.state {
        State::Pass => outcome.found.clone(),
        _ => format!("{}; {}", outcome.found, control.remedy),
    };
    [control.id.to_owned(), outcome.state.name().to_owned(), control.title.to_owned(), found]
}

fn check_requirements(arguments: &Arguments) -> anyhow::Result<()> {
    // Ports on which Knarr itself listens are not in use by others.
    let is_running = data_directory_lock::find(&arguments.data_dir)?.is_some();
    let plan = CheckPlan {
        data: arguments.data_dir.clone(),
        runs_pods: true,
        own_runtime: true,
        listens: if is_running { Vec::new() } else { listens(role(arguments)) },
        networks: if is_running { Vec::new() } else { networks(role(arguments)) },
    };
    print_findings(&check::all(&plan), "Knarr can run here")
}

/// Prints a table, and fails if anything is missing.
fn print_findings(findings: &[Finding], purpose: &str) -> anyhow::Result<()> {
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
    print!("{}", output::table(["WHAT", "VERDICT", "FOUND", "WHAT TO DO"], &rows));
    match findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count() {
        0 => Ok(()),
        count => bail!("{count} of these must be fixed before {purpose}"),
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
