//! `knarr install server|agent …`: installs a systemd service.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args};
use serde_yaml_ng::{Mapping, Value};

use super::common;
use crate::configuration;
use crate::service::{self, Unit};

/// Installed path of the program.
const PROGRAM: &str = "/usr/local/bin/knarr";

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// `server` or `agent`, with the flags of that command; they are written to the configuration file.
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true, value_name = "server|agent [FLAGS]")]
    command: Vec<OsString>,
}

pub fn run(arguments: &Arguments, file: Option<PathBuf>) -> anyhow::Result<()> {
    let role = arguments.command[0].to_string_lossy().into_owned();
    if !matches!(role.as_str(), "server" | "agent") {
        bail!("expected `server` or `agent`, not {role:?}");
    }
    let file = file.unwrap_or_else(|| configuration::FILE.into());
    let mut typed = vec![OsString::from("knarr")];
    typed.extend(arguments.command.iter().cloned());
    typed.extend([OsString::from("--config"), file.clone().into_os_string()]);
    let command = super::command();
    if file.exists() {
        typed = configuration::with_file(typed, &command)?.words;
    }
    // Errors are reported now, not by a service that fails to start.
    let matches = command.clone().try_get_matches_from(typed).unwrap_or_else(|error| error.exit());
    let Some((_, matches)) = matches.subcommand() else { bail!("nothing to install") };
    let settings = settings(matches, &command, &role);
    write_settings(&file, &settings)?;
    let data = settings.get("data-dir").and_then(Value::as_str).unwrap_or(common::DATA).into();
    let flags = match file == Path::new(configuration::FILE) {
        true => Vec::new(),
        false => vec!["--config".to_owned(), file.to_string_lossy().into_owned()],
    };
    let (program, is_placed) = place_program()?;
    let unit = Unit { role, program, data, flags, is_placed };
    let path = unit.install()?;
    println!("wrote {} and {}", file.display(), path.display());
    if service::is_systemd_running() {
        println!("{name} is running: systemctl status {name}; journalctl -u {name}", name = unit.name());
    } else {
        println!("systemd is not running; when it is: systemctl enable --now {}", unit.name());
    }
    Ok(())
}

/// The settings of command line and file, as the file's new content.
fn settings(matches: &ArgMatches, command: &clap::Command, role: &str) -> Mapping {
    let mut settings = Mapping::new();
    let arguments = command.find_subcommand(role).into_iter().flat_map(clap::Command::get_arguments);
    for argument in arguments {
        let (id, Some(name)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let is_given = matches!(
            matches.try_contains_id(id).ok().and_then(|_| matches.value_source(id)),
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        );
        if !is_given || name == "config" {
            continue;
        }
        let mut values: Vec<Value> = match argument.get_action() {
            ArgAction::SetTrue => vec![Value::Bool(true)],
            _ => {
                let raw = matches.get_raw(id).into_iter().flatten();
                raw.map(|value| Value::String(value.to_string_lossy().into_owned())).collect()
            }
        };
        let value = if values.len() == 1 { values.remove(0) } else { Value::Sequence(values) };
        settings.insert(Value::String(name.to_owned()), value);
    }
    settings
}

/// The file may contain a token, so only root can read it.
fn write_settings(path: &Path, settings: &Mapping) -> anyhow::Result<()> {
    let text = if settings.is_empty() { String::new() } else { serde_yaml_ng::to_string(settings)? };
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
        let mut options = std::fs::File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())
    });
    written.with_context(|| format!("cannot write {}: are you root?", path.display()))
}

/// Copies the program to a system path, unless it is in one. Returns whether it was copied for the service.
fn place_program() -> anyhow::Result<(PathBuf, bool)> {
    let own = std::env::current_exe().context("cannot determine the path of this program")?;
    let lasting = ["/usr/", "/opt/", "/bin/", "/sbin/"];
    if lasting.iter().any(|directory| own.starts_with(directory)) {
        return Ok((own, false));
    }
    let beside = Path::new(PROGRAM).with_extension("new");
    std::fs::copy(&own, &beside)
        .and_then(|_| knarr_files::rename_durably(&beside, std::path::Path::new(PROGRAM)))
        .with_context(|| format!("cannot copy {} to {PROGRAM}: are you root?", own.display()))?;
    Ok((PROGRAM.into(), true))
}
