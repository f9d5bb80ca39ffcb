//! The commands, one file each.

mod apiserver;
mod common;
mod controller_manager;
mod images;
mod kubelet;
mod node;
mod proxy;
mod scheduler;
mod server;
mod snapshot;

use clap::Parser;

/// Kubernetes as one program.
#[derive(Parser)]
#[command(name = "knarr", version, about)]
pub enum Command {
    /// Run everything on this machine.
    Server(server::Arguments),
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
            Command::Kubelet(arguments) => common::block_on(kubelet::run(arguments)),
            Command::Proxy(arguments) => common::block_on(proxy::run(arguments)),
            Command::Images(arguments) => common::block_on(images::run(arguments)),
            Command::Snapshot(arguments) => snapshot::run(arguments),
        }
    }
}
