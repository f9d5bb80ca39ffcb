//! Developer tasks: `cargo xtask measure` prints the figures of this codebase.

mod measure;
mod source;

use std::path::PathBuf;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Developer tasks of Knarr")]
enum Command {
    /// Prints function and file lengths, module cycles, duplicated code, tests, documentation and glossary.
    Measure {
        /// Another checkout to measure, for a comparison.
        #[arg(long)]
        root: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Measure { root } => measure::run(&root.unwrap_or_else(source::workspace_root)),
    }
}
