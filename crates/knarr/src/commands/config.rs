//! `knarr config show`: the effective settings and their sources.

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
    /// Print every setting with its value and source.
    Show {
        /// The role whose settings to print.
        #[arg(value_enum, default_value_t = Role::Server)]
        role: Role,
        /// Print only settings that differ from the defaults.
        #[arg(long)]
        changed: bool,
    },
}

pub fn run(arguments: Arguments, file: Option<PathBuf>) -> anyhow::Result<()> {
    let Config::Show { role, changed } = arguments.command;
    let role = role.name();
    print!("{}", configuration::show(role, file, changed, &super::command())?);
    Ok(())
}
