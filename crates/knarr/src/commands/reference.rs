//! The reference of commands and flags, docs/commands.md, from the definitions that parse them.
//!
//! `KNARR_WRITE_DOCS=1 cargo test -p knarr --bin knarr reference` writes the file.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command};

const TITLE: &str = "\
# Commands and flags

Every command of `knarr` with its flags, as `knarr COMMAND --help` prints them. Flags of `knarr server`, `knarr agent` and the other
commands can also be set in [the configuration file](configuration.md), by their names without dashes. How the flags of Kubernetes' own
programs map to these is in [flags.md](flags.md).

This file is generated from the program: `KNARR_WRITE_DOCS=1 cargo test -p knarr --bin knarr reference`.
";

fn generate() -> String {
    let mut root = super::command();
    root.build();
    let mut text = TITLE.to_owned();
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        describe(&mut text, command, "knarr", 2);
    }
    text
}

fn describe(text: &mut String, command: &Command, parent: &str, depth: usize) {
    if command.is_hide_set() {
        return;
    }
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "\n{} `{name}`\n\n{}\n", "#".repeat(depth), about.trim());
    let arguments: Vec<&Arg> =
        command.get_arguments().filter(|one| !one.is_hide_set() && one.get_id() != "help").collect();
    if !arguments.is_empty() {
        text.push_str("\n| Flag | Default | What it does |\n| --- | --- | --- |\n");
        for argument in arguments {
            row(text, argument);
        }
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        describe(text, inner, &name, depth + 1);
    }
}

fn row(text: &mut String, argument: &Arg) {
    let value = || {
        let names = argument.get_value_names().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        names.join(" ")
    };
    let takes_value = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let mut flag = match (argument.get_long(), argument.get_short()) {
        (Some(long), Some(short)) => format!("--{long}, -{short}"),
        (Some(long), None) => format!("--{long}"),
        _ => String::new(),
    };
    if takes_value {
        flag = format!("{flag} {}", value()).trim().to_owned();
    }
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = match defaults.join(",") {
        text if takes_value && !text.is_empty() => format!("`{text}`"),
        _ => String::new(),
    };
    let mut help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let choices: Vec<String> = match argument.get_action() {
        ArgAction::Set | ArgAction::Append => {
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect()
        }
        _ => Vec::new(),
    };
    if choices.len() > 1 {
        let _ = write!(help, " One of {}.", choices.join(", "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(help, " Environment: `{}`.", variable.to_string_lossy());
    }
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let _ = writeln!(text, "| `{}` | {} | {} |", cell(&flag), cell(&default), cell(&help));
}

#[test]
fn the_reference_is_as_the_program_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let generated = generate();
    if std::env::var_os("KNARR_WRITE_DOCS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let difference = generated.lines().zip(written.lines()).find(|(expected, found)| expected != found);
    assert!(
        written == generated,
        "docs/commands.md is not up to date, at {difference:?}: KNARR_WRITE_DOCS=1 cargo test -p knarr --bin knarr reference"
    );
}

#[test]
fn every_command_and_flag_is_explained() {
    fn check(command: &Command, path: &str) {
        let name = format!("{path} {}", command.get_name());
        assert!(command.get_about().is_some(), "{name} has no description");
        for argument in command.get_arguments().filter(|one| !one.is_hide_set() && !one.is_positional()) {
            assert!(argument.get_help().is_some(), "{name} --{:?} has no description", argument.get_long());
        }
        command.get_subcommands().for_each(|inner| check(inner, &name));
    }
    let mut root = super::command();
    root.build();
    root.get_subcommands().for_each(|command| check(command, "knarr"));
}
