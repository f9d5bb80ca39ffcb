//! Knarr: Kubernetes as one program. What is here only reads the command line and puts the parts together.

mod address;
mod allocator;
mod check;
mod cluster;
mod commands;
mod complaint;
mod configuration;
mod footprint;
mod join;
mod journal;
mod manifests;
mod otlp;
mod ready;
mod remove;
mod running;
mod service;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> anyhow::Result<ExitCode> {
    // Container runtimes call the network plugin by its name with the command in the environment.
    if std::env::var_os("CNI_COMMAND").is_some() {
        return Ok(knarr_network::cni_main());
    }
    if let Err(error) = forbid_core_dumps() {
        eprintln!("knarr: cannot turn off core dumps: {error}");
        return Ok(ExitCode::FAILURE);
    }
    match commands::run(std::env::args_os().collect()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("knarr: {}", complaint::complaint(&error));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The process holds private keys and secrets: neither a core dump nor a debugger of the same user may read them.
/// Child processes, containers among them, have the flag reset when they are executed.
fn forbid_core_dumps() -> nix::Result<()> {
    nix::sys::prctl::set_dumpable(false)
}

#[cfg(test)]
mod tests {
    #[test]
    fn core_dumps_are_off() {
        super::forbid_core_dumps().unwrap();
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    }
}
