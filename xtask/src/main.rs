//! Developer tasks: `cargo xtask generate` writes the tables of Kubernetes' API, `cargo xtask features` the features of
//! dependencies, `cargo xtask measure` prints the figures of this codebase.

mod features;
mod generate;
mod measure;
mod source;

use std::path::PathBuf;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Developer tasks of Knarr")]
enum Command {
    /// Writes the tables that describe Kubernetes' API.
    Generate {
        /// A directory with what an API server of the wanted version publishes about itself.
        #[arg(long)]
        kubernetes: PathBuf,
        /// Only compares, and fails when a table differs.
        #[arg(long)]
        check: bool,
    },
    /// Writes which features of dependencies all packages share, so that each is compiled once.
    Features {
        /// Only compares, and fails when the manifest differs.
        #[arg(long)]
        check: bool,
    },
    /// Prints function and file lengths, module cycles, duplicated code, tests, documentation and glossary.
    Measure {
        /// Another checkout to measure, for a comparison.
        #[arg(long)]
        root: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Generate { kubernetes, check } => generate::run(&source::workspace_root(), kubernetes, check),
        Command::Features { check } => features::run(&source::workspace_root(), check),
        Command::Measure { root } => measure::run(&root.unwrap_or_else(source::workspace_root)),
    }
}
