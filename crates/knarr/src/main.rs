//! Knarr: Kubernetes as one program. What is here only reads the command line and puts the parts together.

mod commands;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    commands::Command::parse().run()
}
