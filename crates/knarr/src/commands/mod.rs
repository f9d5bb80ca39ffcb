//! The commands, one file each.

mod access;
mod agent;
pub mod api_behaviour;
mod api_server_address;
mod apiserver;
mod audit;
mod check;
mod client_arguments;
mod client_certificates;
mod cluster;
pub mod common;
mod completions;
mod config;
mod controller_manager;
mod controller_signers;
mod controller_syncs;
mod controller_tuning;
mod datastore;
mod disable;
mod drain_and_stop;
mod eviction;
mod images;
mod install;
mod journey;
mod kinds;
mod kubelet;
mod kubelet_access;
mod leadership;
mod local_storage;
mod logs;
pub mod network;
pub mod node;
mod node_images;
mod node_registration;
pub mod node_resources;
mod node_tuning;
mod preflight;
mod proxy;
#[cfg(test)]
mod reference;
mod rollout;
mod scheduler;
mod server;
mod server_files;
mod snapshot;
mod snapshot_schedule;
mod snapshot_storage;
mod status;
mod stop;
mod storage;
mod store;
mod support_bundle;
mod token;
mod ui;
mod uninstall;
mod why;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches, Parser};

pub use client_arguments::ClientArguments;
pub use snapshot::{LastSnapshot, Occasion};

use crate::{configuration, process_flags, restart};

/// Display order of standalone components: after the everyday commands.
const COMPONENT: usize = 100;

const FIRST_STEPS: &str = "\
First steps:
  knarr check                    check the requirements of this host
  knarr server                   start a cluster; prints how to use it
  knarr status                   show the cluster on one screen
  knarr journey deployment/web   show the timeline of an object
  knarr why pod/web              diagnose an object
  knarr ui                       open the cluster in a browser
  knarr uninstall                remove Knarr and everything it created";

const JOURNEYS: &str = "\
Examples:
  knarr journey deployment/web                    all steps until its pods were reachable
  knarr journey pod web -n shop -f                follow the steps as they happen, also before it exists
  knarr journey deployment/web -o html > web.html an HTML page with a chart";

const REASONS: &str = "\
Examples:
  knarr why pod/web           Pending, crashing, not ready, Terminating or unreachable?
  knarr why service/web       does it have endpoints that respond?
  knarr why pvc/data -n shop  why is it not bound?";

/// The version of the program, the commit it was built from, and the release of Kubernetes it behaves as.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("KNARR_COMMIT"));
    format!("{version} (commit {commit}, Kubernetes {})", knarr_version::KUBERNETES)
});

/// Kubernetes in one binary.
#[derive(Parser)]
#[command(name = "knarr", version = VERSION.as_str(), about, after_help = FIRST_STEPS)]
pub enum Command {
    /// Run a cluster on this host: control plane and node.
    Server(server::Arguments),
    /// Join this host to a cluster as a node.
    Agent(agent::Arguments),
    /// Create, list, stop and delete clusters of several nodes on this host.
    Cluster(cluster::Arguments),
    /// Show the cluster on one screen: health, nodes, servers, store, certificates, snapshots, problems.
    Status(status::Arguments),
    /// Create, list and delete tokens for joining nodes and servers.
    Token(token::Arguments),
    /// Check the requirements of this host, and how to fix what is missing.
    Check(check::Arguments),
    /// Show the timeline of an object through all components.
    #[command(after_help = JOURNEYS)]
    Journey(journey::Arguments),
    /// Diagnose an object: cause, evidence and fix.
    #[command(after_help = REASONS)]
    Why(why::Arguments),
    /// Print a link that opens the page of the cluster in a browser.
    Ui(ui::Arguments),
    /// Print the log of Knarr on this host, or of one component.
    Logs(logs::Arguments),
    /// Collect what somebody needs who is asked for help, without secrets.
    SupportBundle(support_bundle::Arguments),
    /// Show the effective settings.
    Config(config::Arguments),
    /// Run the API server and its store.
    #[command(display_order = COMPONENT)]
    Apiserver(apiserver::Arguments),
    /// Run the controllers.
    #[command(display_order = COMPONENT)]
    ControllerManager(controller_manager::Arguments),
    /// Run the scheduler.
    #[command(display_order = COMPONENT)]
    Scheduler(scheduler::Arguments),
    /// Run the kubelet.
    #[command(display_order = COMPONENT)]
    Kubelet(kubelet::Arguments),
    /// Run the service proxy.
    #[command(display_order = COMPONENT)]
    Proxy(proxy::Arguments),
    /// Run the driver of local volumes.
    #[command(display_order = COMPONENT)]
    LocalStorage(local_storage::Arguments),
    /// Install a systemd service that starts at boot.
    Install(install::Arguments),
    /// Stop the server or agent on this host; pods keep running.
    Stop(stop::Arguments),
    /// Drain this node, then stop the server or agent.
    DrainAndStop(drain_and_stop::Arguments),
    /// Remove Knarr from this host: pods, runtime, network, files.
    Uninstall(uninstall::Arguments),
    /// Import container images into this node.
    Images(images::Arguments),
    /// Replace the cluster's certificate authority.
    Certificate(rollout::CertificateArguments),
    /// Replace the key that encrypts objects at rest.
    SecretsEncryption(rollout::EncryptionArguments),
    /// Save or restore the store.
    Snapshot(snapshot::Arguments),
    /// Check, repair or compact the store of a stopped server.
    Store(store::Arguments),
    /// Print shell completions.
    Completions(completions::Arguments),
}

/// All commands and flags, including the one for the configuration file.
pub fn command() -> clap::Command {
    configuration::add_flag(Command::command())
}

/// Parses and runs a command line.
pub fn run(typed: Vec<OsString>) -> anyhow::Result<()> {
    let (command, file) = parse(typed)?;
    command.run(file)
}

/// The command of a command line, and the configuration file that was read. The description of all flags, which is large, is
/// not kept while the command runs.
fn parse(typed: Vec<OsString>) -> anyhow::Result<(Command, Option<PathBuf>)> {
    crate::feature_gates::register();
    let command = command();
    let merged = configuration::with_file(typed, &command)?;
    let matches = command.clone().try_get_matches_from(&merged.words).unwrap_or_else(|error| {
        let error = configuration::without_secret(error, &command);
        if let Some(origin) = merged.origin_of(&error) {
            eprintln!("{origin}");
        }
        error.exit()
    });
    process_flags::set_flags(&matches);
    let file = matches.subcommand().and_then(|(_, inner)| inner.try_get_one::<String>("config").ok().flatten());
    let file = file.map(PathBuf::from);
    Ok((Command::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()), file))
}

/// Refuses settings of the API server that cannot be used. Neither the store nor the network is needed for that.
pub fn check_api_server(words: Vec<OsString>) -> anyhow::Result<()> {
    match Command::from_arg_matches(&component_matches(words)?)? {
        Command::Apiserver(arguments) => apiserver::check(&arguments),
        _ => Ok(()),
    }
}

fn component_matches(words: Vec<OsString>) -> anyhow::Result<clap::ArgMatches> {
    command().try_get_matches_from(words).map_err(|error| {
        let message = error.to_string();
        // What is missing is listed in lines of its own; usage follows an empty one.
        let lines: Vec<&str> = message.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        anyhow::anyhow!("{}", lines.join(" ").trim_start_matches("error: "))
    })
}

/// Runs a standalone component with these settings; the configuration file is not read.
pub fn run_component(words: Vec<OsString>) -> anyhow::Result<()> {
    parse_component(words)?.run(None)
}

fn parse_component(words: Vec<OsString>) -> anyhow::Result<Command> {
    crate::feature_gates::register();
    let matches = component_matches(words)?;
    process_flags::set_flags(&matches);
    Ok(Command::from_arg_matches(&matches)?)
}

impl Command {
    /// Whether the command runs until it is stopped.
    fn is_daemon(&self) -> bool {
        matches!(
            self,
            Command::Server(_)
                | Command::Agent(_)
                | Command::Apiserver(_)
                | Command::ControllerManager(_)
                | Command::Scheduler(_)
                | Command::Kubelet(_)
                | Command::Proxy(_)
                | Command::LocalStorage(_)
        )
    }

    /// The configured node name, if it is not the host's.
    fn node_name(&self) -> Option<&str> {
        match self {
            Command::Server(arguments) => arguments.node.node_name.as_deref(),
            Command::Agent(arguments) => arguments.node.node_name.as_deref(),
            Command::Kubelet(arguments) => arguments.node.node_name.as_deref(),
            Command::Proxy(arguments) => arguments.hostname_override.as_deref(),
            Command::LocalStorage(arguments) => arguments.node_name.as_deref(),
            _ => None,
        }
    }

    fn run(self, file: Option<PathBuf>) -> anyhow::Result<()> {
        common::start_logging(self.node_name(), self.is_daemon());
        match self {
            Command::Apiserver(arguments) => common::block_on(apiserver::run(arguments)),
            Command::ControllerManager(arguments) => common::block_on(controller_manager::run(arguments)),
            Command::Scheduler(arguments) => common::block_on(scheduler::run(arguments)),
            Command::Server(arguments) => {
                common::block_on(server::run(arguments)).and_then(|()| restart::restart_if_requested())
            }
            Command::Agent(arguments) => {
                common::block_on(agent::run(arguments)).and_then(|()| restart::restart_if_requested())
            }
            Command::Cluster(arguments) => common::block_on(cluster::run(arguments)),
            Command::Status(arguments) => common::block_on(status::run(arguments)),
            Command::Token(arguments) => common::block_on(token::run(arguments)),
            Command::Kubelet(arguments) => common::block_on(kubelet::run(arguments)),
            Command::Proxy(arguments) => common::block_on(proxy::run(arguments)),
            Command::LocalStorage(arguments) => common::block_on(local_storage::run(arguments)),
            Command::Journey(arguments) => common::block_on(journey::run(arguments)),
            Command::Ui(arguments) => common::block_on(ui::run(arguments)),
            Command::Why(arguments) => common::block_on(why::run(arguments)),
            Command::Images(arguments) => common::block_on(images::run(arguments)),
            Command::SupportBundle(arguments) => common::block_on(support_bundle::run(arguments)),
            Command::Logs(arguments) => logs::run(&arguments),
            Command::Check(arguments) => check::run(&arguments, file),
            Command::Config(arguments) => config::run(arguments, file),
            Command::Completions(arguments) => completions::run(&arguments),
            Command::Install(arguments) => install::run(&arguments, file),
            Command::Stop(arguments) => stop::run(&arguments),
            Command::Store(arguments) => store::run(&arguments),
            Command::DrainAndStop(arguments) => common::block_on(drain_and_stop::run(arguments)),
            Command::Uninstall(arguments) => common::block_on(uninstall::run(arguments)),
            Command::Snapshot(arguments) => common::block_on(snapshot::run(arguments)),
            Command::Certificate(arguments) => common::block_on(rollout::certificate(arguments)),
            Command::SecretsEncryption(arguments) => common::block_on(rollout::encryption(arguments)),
        }
    }
}
