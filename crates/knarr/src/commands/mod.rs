//! The commands, one file each.

mod agent;
mod apiserver;
mod common;
mod controller_manager;
mod images;
mod kubelet;
mod leadership;
pub mod network;
mod node;
mod node_resources;
mod proxy;
mod scheduler;
mod server;
mod snapshot;
mod stop;
mod token;
mod uninstall;

use clap::Parser;

/// Kubernetes as one program.
#[derive(Parser)]
#[command(name = "knarr", version, about)]
pub enum Command {
    /// Run everything on this machine.
    Server(server::Arguments),
    /// Add this machine to a cluster as a node.
    Agent(agent::Arguments),
    /// Make, list and delete tokens that nodes join with.
    Token(token::Arguments),
    /// Run the API server and its store.
    Apiserver(apiserver::Arguments),
    /// Run the controllers.
    ControllerManager(controller_manager::Arguments),
    /// Run the scheduler.
    Scheduler(scheduler::Arguments),
    /// Run the node: pods through containerd.
    Kubelet(kubelet::Arguments),
    /// Run the service proxy.
    Proxy(proxy::Arguments),
    /// End the server or agent on this machine; its pods go on running.
    Stop(stop::Arguments),
    /// Remove everything of Knarr from this machine: pods, runtime, network, files.
    Uninstall(uninstall::Arguments),
    /// Bring container images onto this node.
    Images(images::Arguments),
    /// Save or restore the store.
    Snapshot(snapshot::Arguments),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        common::start_logging();
        match self {
            Command::Apiserver(arguments) => common::block_on(apiserver::run(arguments)),
            Command::ControllerManager(arguments) => common::block_on(controller_manager::run(arguments)),
            Command::Scheduler(arguments) => common::block_on(scheduler::run(arguments)),
            Command::Server(arguments) => common::block_on(server::run(arguments)),
            Command::Agent(arguments) => common::block_on(agent::run(arguments)),
            Command::Token(arguments) => common::block_on(token::run(arguments)),
            Command::Kubelet(arguments) => common::block_on(kubelet::run(arguments)),
            Command::Proxy(arguments) => common::block_on(proxy::run(arguments)),
            Command::Images(arguments) => common::block_on(images::run(arguments)),
            Command::Stop(arguments) => stop::run(&arguments),
            Command::Uninstall(arguments) => common::block_on(uninstall::run(arguments)),
            Command::Snapshot(arguments) => snapshot::run(arguments),
        }
    }
}
