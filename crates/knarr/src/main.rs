//! The `knarr` binary: parses the command line and composes the components.

mod address;
mod admin_client;
mod allocator;
mod balancer;
mod built_in;
mod check;
mod cluster;
mod commands;
mod component_server;
mod configuration;
mod data_directory_lock;
mod error_message;
mod feature_gates;
mod footprint;
mod helm;
mod join;
mod journal;
mod local_cluster;
mod log_source;
mod manifests;
mod otlp;
mod output;
mod paths;
mod process_flags;
mod ready;
mod registries;
mod remove;
mod restart;
mod servers;
mod service;
mod signals;
mod snapshot_place;
mod support;
mod tls_arguments;
mod upgrade;
mod upstream;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> anyhow::Result<ExitCode> {
    // Container runtimes start the CNI plugin by its name with the command in the environment.
    if std::env::var_os("CNI_COMMAND").is_some() {
        return Ok(knarr_network::cni_main());
    }
    if let Err(error) = forbid_core_dumps() {
        eprintln!("knarr: cannot turn off core dumps: {error}");
        return Ok(ExitCode::FAILURE);
    }
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(code) = upstream::run(&words) {
        return Ok(code);
    }
    match commands::run(words) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("knarr: {}", error_message::error_message(&error));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Disables core dumps and debugging by the same user: the process holds private keys and secrets.
/// Child processes, containers among them, have the flag reset on exec.
fn forbid_core_dumps() -> nix::Result<()> {
    nix::sys::prctl::set_dumpable(false)
}
