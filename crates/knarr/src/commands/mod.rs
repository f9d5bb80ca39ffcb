//! The commands, one file each.

mod apiserver;
mod common;
mod controller_manager;
mod scheduler;

use clap::Parser;

/// Kubernetes as one program.
#[derive(Parser)]
#[command(name = "knarr", version, about)]
pub enum Command {
    /// Run the API server and its store.
    Apiserver(apiserver::Arguments),
    /// Run the controllers.
    ControllerManager(controller_manager::Arguments),
    /// Run the scheduler.
    Scheduler(scheduler::Arguments),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        common::start_logging();
        match self {
            Command::Apiserver(arguments) => common::block_on(apiserver::run(arguments)),
            Command::ControllerManager(arguments) => common::block_on(controller_manager::run(arguments)),
            Command::Scheduler(arguments) => common::block_on(scheduler::run(arguments)),
        }
    }
}
