//! Prints the effective settings and their sources.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::{merge, read, without_secret};
use crate::output::table;

/// A table of all settings of a command.
pub fn show(role: &str, file: Option<PathBuf>, only_changed: bool, command: &Command) -> anyhow::Result<String> {
    let must_exist = file.is_some();
    let path = file.unwrap_or_else(|| super::FILE.into());
    let settings = read(&path, must_exist, command)?;
    // Required flags may be missing when only showing settings.
    let command = command.clone().mut_subcommand(role, |reader| reader.mut_args(|argument| argument.required(false)));
    let Some(reader) = command.find_subcommand(role) else { anyhow::bail!("unknown command {role}") };
    let typed: Vec<OsString> = ["knarr", role].map(OsString::from).into();
    let merged = merge(typed, &settings, reader, |variable| std::env::var_os(variable).is_some());
    let matches = command.clone().try_get_matches_from(merged).map_err(|error| {
        let message = without_secret(error, &command).to_string();
        let first = message.lines().next().unwrap_or_default();
        anyhow::anyhow!("{} is invalid: {}", path.display(), first.trim_start_matches("error: "))
    })?;
    let Some((_, matches)) = matches.subcommand() else { anyhow::bail!("unknown command {role}") };
    let arguments = reader
        .get_arguments()
        .filter(|argument| argument.get_long().is_some_and(|name| !matches!(name, "config" | "help" | "version")));
    let rows = arguments.map(|argument| {
        let setting = settings.iter().find(|setting| argument.get_long() == Some(&setting.key));
        row(argument, matches, &setting.map_or(&*path, |setting| &setting.file).to_string_lossy())
    });
    let is_listed = |row: &[String; 3]| !only_changed || !matches!(row[2].as_str(), "" | "default");
    let rows: Vec<[String; 3]> = rows.filter(is_listed).collect();
    Ok(table(["SETTING", "VALUE", "FROM"], &rows))
}

fn row(argument: &Arg, matches: &ArgMatches, path: &str) -> [String; 3] {
    let id = argument.get_id().as_str();
    let raw = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
    let value = raw.collect::<Vec<_>>().join(",");
    let from = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => path.to_owned(),
        Some(ValueSource::EnvVariable) => {
            format!("environment {}", argument.get_env().unwrap_or_default().to_string_lossy())
        }
        Some(_) => "default".to_owned(),
        None => String::new(),
    };
    // Values that are hidden in the environment are hidden here, too.
    let is_secret = argument.is_hide_env_values_set() && !value.is_empty();
    let value = if is_secret { "(hidden)".to_owned() } else { value };
    [argument.get_long().unwrap_or_default().to_owned(), value, from]
}
