//! `knarr config show`: the settings in force, and where each comes from.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::check::Role;
use crate::configuration;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Config,
}

#[derive(Subcommand, Clone, Debug)]
enum Config {
    /// Print every setting with its value and where it comes from.
    Show {
        /// Whose settings.
        #[arg(value_enum, default_value_t = Role::Server)]
        role: Role,
        /// Print only what differs from the defaults.
        #[arg(long)]
        changed: bool,
    },
}

pub fn run(arguments: Arguments, file: Option<PathBuf>) -> anyhow::Result<()> {
    let Config::Show { role, changed } = arguments.command;
    let role = if role == Role::Agent { "agent" } else { "server" };
    print!("{}", configuration::show(role, file, changed, &super::command())?);
    Ok(())
}
