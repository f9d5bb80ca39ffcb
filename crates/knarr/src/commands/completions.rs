//! `knarr completions SHELL`: prints shell completions.

use std::io::Write as _;

use clap::Args;
use clap_complete::Shell;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The shell to print completions for.
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut super::command(), "knarr", &mut text);
    match std::io::stdout().write_all(&text) {
        // The reader may have closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
