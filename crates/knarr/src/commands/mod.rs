//! The commands, one file each.

mod apiserver;
mod common;

use clap::Parser;

/// Kubernetes as one program.
#[derive(Parser)]
#[command(name = "knarr", version, about)]
pub enum Command {
    /// Run the API server and its store.
    Apiserver(apiserver::Arguments),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        common::start_logging();
        match self {
            Command::Apiserver(arguments) => common::block_on(apiserver::run(arguments)),
        }
    }
}
