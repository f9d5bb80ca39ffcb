//! Knarr: Kubernetes as one program. What is here only reads the command line and puts the parts together.

mod cluster;
mod commands;
mod join;
mod remove;
mod running;
mod service;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    // Container runtimes call the network plugin by its name with the command in the environment.
    if std::env::var_os("CNI_COMMAND").is_some() {
        return Ok(knarr_network::cni_main());
    }
    commands::Command::parse().run()?;
    Ok(ExitCode::SUCCESS)
}
