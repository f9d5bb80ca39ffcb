//! The commands, one file each.

mod agent;
mod apiserver;
mod check;
mod common;
mod completions;
mod config;
mod controller_manager;
mod drain_and_stop;
mod eviction;
mod images;
mod install;
mod journey;
mod kinds;
mod kubelet;
mod leadership;
pub mod network;
pub mod node;
mod node_resources;
mod preflight;
mod proxy;
mod scheduler;
mod server;
mod snapshot;
mod stop;
mod token;
mod uninstall;
mod why;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches, Parser};

pub use common::table;

use crate::configuration;

/// Parts of Kubernetes that run alone are listed after the commands for everyday.
const PART: usize = 100;

const FIRST_STEPS: &str = "\
First steps:
  knarr check                    see what this machine lacks, if anything
  knarr server                   run a cluster here; it says how to use it
  knarr journey deployment/web   see how something came to run
  knarr why pod/web              see why something does not
  knarr uninstall                leave the machine as it was";

const JOURNEYS: &str = "\
Examples:
  knarr journey deployment/web                    all that happened until its pods could be reached
  knarr journey pod web -n shop -f                the same as it happens; also of what does not exist yet
  knarr journey deployment/web -o html > web.html a page with a chart, in one file";

const REASONS: &str = "\
Examples:
  knarr why pod/web           Pending, crashing, not ready, Terminating, or not reached?
  knarr why service/web       does anybody answer behind it?
  knarr why pvc/data -n shop  why has it no volume?";

/// The version of the program, the commit it was built from, and the release of Kubernetes it behaves as.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("KNARR_COMMIT"));
    format!("{version} (commit {commit}, Kubernetes {})", knarr_version::KUBERNETES)
});

/// Kubernetes as one program.
#[derive(Parser)]
#[command(name = "knarr", version = VERSION.as_str(), about, after_help = FIRST_STEPS)]
pub enum Command {
    /// Run everything on this machine.
    Server(server::Arguments),
    /// Add this machine to a cluster as a node.
    Agent(agent::Arguments),
    /// Make, list and delete tokens that nodes join with.
    Token(token::Arguments),
    /// See whether this machine has what it needs, and how to get what it lacks.
    Check(check::Arguments),
    /// Tell an object's way through the system as a timeline.
    #[command(after_help = JOURNEYS)]
    Journey(journey::Arguments),
    /// Say why something is not as it should be, and what to do.
    #[command(after_help = REASONS)]
    Why(why::Arguments),
    /// Show the settings in force.
    Config(config::Arguments),
    /// Run the API server and its store.
    #[command(display_order = PART)]
    Apiserver(apiserver::Arguments),
    /// Run the controllers.
    #[command(display_order = PART)]
    ControllerManager(controller_manager::Arguments),
    /// Run the scheduler.
    #[command(display_order = PART)]
    Scheduler(scheduler::Arguments),
    /// Run the node: pods through containerd.
    #[command(display_order = PART)]
    Kubelet(kubelet::Arguments),
    /// Run the service proxy.
    #[command(display_order = PART)]
    Proxy(proxy::Arguments),
    /// Make it a service that starts with the machine.
    Install(install::Arguments),
    /// End the server or agent on this machine; its pods go on running.
    Stop(stop::Arguments),
    /// Move this node's pods away, then end the server or agent.
    DrainAndStop(drain_and_stop::Arguments),
    /// Remove everything of Knarr from this machine: pods, runtime, network, files.
    Uninstall(uninstall::Arguments),
    /// Bring container images onto this node.
    Images(images::Arguments),
    /// Save or restore the store.
    Snapshot(snapshot::Arguments),
    /// Print completions for a shell.
    Completions(completions::Arguments),
}

/// All commands and flags, with the one that names the configuration file.
pub fn command() -> clap::Command {
    configuration::add_flag(Command::command())
}

/// Does what was typed.
pub fn run(typed: Vec<OsString>) -> anyhow::Result<()> {
    let command = command();
    let merged = configuration::with_file(typed, &command)?;
    let matches = command.try_get_matches_from(&merged.words).unwrap_or_else(|error| {
        if let Some(origin) = merged.origin_of(&error) {
            eprintln!("{origin}");
        }
        error.exit()
    });
    let file = matches.subcommand().and_then(|(_, inner)| inner.try_get_one::<String>("config").ok().flatten());
    let file = file.map(PathBuf::from);
    Command::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).run(file)
}

impl Command {
    /// Whether it goes on until it is asked to stop.
    fn lasts(&self) -> bool {
        matches!(
            self,
            Command::Server(_)
                | Command::Agent(_)
                | Command::Apiserver(_)
                | Command::ControllerManager(_)
                | Command::Scheduler(_)
                | Command::Kubelet(_)
                | Command::Proxy(_)
        )
    }

    /// The node this process is on, where it is given another name than the machine's.
    fn node_name(&self) -> Option<&str> {
        match self {
            Command::Server(arguments) => arguments.node.node_name.as_deref(),
            Command::Agent(arguments) => arguments.node.node_name.as_deref(),
            Command::Kubelet(arguments) => arguments.node.node_name.as_deref(),
            Command::Proxy(arguments) => arguments.hostname_override.as_deref(),
            _ => None,
        }
    }

    fn run(self, file: Option<PathBuf>) -> anyhow::Result<()> {
        common::start_logging(self.node_name(), self.lasts());
        match self {
            Command::Apiserver(arguments) => common::block_on(apiserver::run(arguments)),
            Command::ControllerManager(arguments) => common::block_on(controller_manager::run(arguments)),
            Command::Scheduler(arguments) => common::block_on(scheduler::run(arguments)),
            Command::Server(arguments) => common::block_on(server::run(arguments)),
            Command::Agent(arguments) => common::block_on(agent::run(arguments)),
            Command::Token(arguments) => common::block_on(token::run(arguments)),
            Command::Kubelet(arguments) => common::block_on(kubelet::run(arguments)),
            Command::Proxy(arguments) => common::block_on(proxy::run(arguments)),
            Command::Journey(arguments) => common::block_on(journey::run(arguments)),
            Command::Why(arguments) => common::block_on(why::run(arguments)),
            Command::Images(arguments) => common::block_on(images::run(arguments)),
            Command::Check(arguments) => check::run(&arguments),
            Command::Config(arguments) => config::run(arguments, file),
            Command::Completions(arguments) => completions::run(&arguments),
            Command::Install(arguments) => install::run(&arguments, file),
            Command::Stop(arguments) => stop::run(&arguments),
            Command::DrainAndStop(arguments) => common::block_on(drain_and_stop::run(arguments)),
            Command::Uninstall(arguments) => common::block_on(uninstall::run(arguments)),
            Command::Snapshot(arguments) => snapshot::run(arguments),
        }
    }
}
