//! Developer tasks: `cargo xtask generate` writes the tables of Kubernetes' API, `cargo xtask measure`
//! prints the figures of this codebase.

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
        /// A folder with what an API server of the wanted version publishes about itself.
        #[arg(long)]
        kubernetes: PathBuf,
        /// Only compares, and fails when a table differs.
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
        Command::Measure { root } => measure::run(&root.unwrap_or_else(source::workspace_root)),
    }
}
