//! The configuration file: any flag by its name, without the leading dashes. The command line and the environment take
//! precedence.
//!
//! Files in the directory `config.yaml.d` beside it are read after it, by name; a setting of a later file replaces that of an
//! earlier one.
//!
//! Input: the command line and the files. Output: arguments as if the file's had been typed, too. Knarr's own commands read
//! it; commands that stand for a component of Kubernetes do not.

mod show;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use knarr_why::nearest;
use serde_yaml_ng::Value;

pub use show::show;

pub const FILE: &str = "/etc/knarr/config.yaml";
const VARIABLE: &str = "KNARR_CONFIG";

/// The commands that read the file.
const READERS: [&str; 19] = [
    "server",
    "agent",
    "status",
    "token",
    "images",
    "snapshot",
    "check",
    "stop",
    "drain-and-stop",
    "install",
    "uninstall",
    "config",
    "journey",
    "why",
    "ui",
    "logs",
    "support-bundle",
    "certificate",
    "secrets-encryption",
];

/// Adds the flag that selects the file to the commands that read it.
pub fn add_flag(command: Command) -> Command {
    READERS.into_iter().fold(command, |command, name| {
        if command.find_subcommand(name).is_none() {
            return command;
        }
        command.mut_subcommand(name, |reader| {
            reader.arg(
                Arg::new("config")
                    .long("config")
                    .env(VARIABLE)
                    .value_name("FILE")
                    .global(true)
                    .help(format!("Configuration file: any flag by its name [default: {FILE}]")),
            )
        })
    })
}

/// One setting of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub key: String,
    pub values: Vec<String>,
    /// The file that sets it.
    pub file: PathBuf,
}

/// The arguments to parse: the command line, and the file's settings that neither command line nor environment set.
pub struct Merged {
    pub words: Vec<OsString>,
    /// The words that come from files, with their file.
    from_file: Vec<(OsString, PathBuf)>,
}

impl Merged {
    /// The origin of an invalid value, if it is the file.
    pub fn origin_of(&self, error: &clap::Error) -> Option<String> {
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
        let flag = argument.split(' ').next()?;
        let is_own = |word: &OsString| word.to_string_lossy().split('=').next() == Some(flag);
        let (_, file) = self.from_file.iter().find(|(word, _)| is_own(word))?;
        Some(format!("{flag} is set in {}", file.display()))
    }
}

/// An error without the value that it is about, if that is a secret: errors reach logs.
pub fn without_secret(mut error: clap::Error, command: &Command) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return error };
    let name = argument.split(' ').next().unwrap_or_default().trim_start_matches("--").to_owned();
    let is_secret = |own: &Arg| own.is_hide_env_values_set() && own.get_long() == Some(&name);
    if command.get_subcommands().flat_map(Command::get_arguments).any(is_secret) {
        error.insert(ContextKind::InvalidValue, ContextValue::String("(hidden)".to_owned()));
    }
    error
}

/// Adds the file's settings to the command line.
pub fn with_file(typed: Vec<OsString>, command: &Command) -> anyhow::Result<Merged> {
    let name = typed.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let (path, is_named) = path(&typed);
    let Some(reader) = command.find_subcommand(name).filter(|_| READERS.contains(&name)) else {
        return Ok(Merged { words: typed, from_file: Vec::new() });
    };
    let settings = read(&path, is_named, command)?;
    let count = typed.len();
    let reader = &for_subcommand(reader, typed.get(2).and_then(|word| word.to_str()).unwrap_or_default());
    let words = merge(typed, &settings, reader, |variable| std::env::var_os(variable).is_some());
    let file_of = |word: &OsString| {
        let word = word.to_string_lossy();
        let key = word.trim_start_matches("--").split('=').next().unwrap_or_default().to_owned();
        settings.iter().find(|setting| setting.key == key).map(|setting| setting.file.clone()).unwrap_or_default()
    };
    let from_file = words[count..].iter().map(|word| (word.clone(), file_of(word))).collect();
    Ok(Merged { from_file, words })
}

/// The command with the flags that may follow a subcommand; the command itself if the word is none of its subcommands.
fn for_subcommand(reader: &Command, word: &str) -> Command {
    let Some(subcommand) = reader.find_subcommand(word) else { return reader.clone() };
    let shared = reader.get_arguments().filter(|argument| argument.is_global_set()).cloned();
    Command::new("subcommand").args(shared.chain(subcommand.get_arguments().cloned()))
}

/// The file, and whether it was selected explicitly: then it must exist.
fn path(typed: &[OsString]) -> (PathBuf, bool) {
    let mut words = typed.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some(("--config", path)) => return (path.into(), true),
            _ if word == "--config" => return (words.next().unwrap_or_default().into_owned().into(), true),
            _ => {}
        }
    }
    match std::env::var_os(VARIABLE) {
        Some(path) => (path.into(), true),
        None => (FILE.into(), false),
    }
}

/// The settings of a file and of the files in the directory beside it.
pub fn read(path: &Path, must_exist: bool, command: &Command) -> anyhow::Result<Vec<Setting>> {
    let mut settings = read_file(path, must_exist, command)?;
    for file in drop_ins(path)? {
        for setting in read_file(&file, true, command)? {
            settings.retain(|earlier| earlier.key != setting.key);
            settings.push(setting);
        }
    }
    Ok(settings)
}

/// The files of the directory named like the file with `.d`, by name.
fn drop_ins(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut directory = path.as_os_str().to_owned();
    directory.push(".d");
    let directory = PathBuf::from(directory);
    let entries = match std::fs::read_dir(&directory) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.with_context(|| format!("cannot read {}", directory.display()))?.path();
        if file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path, must_exist: bool, command: &Command) -> anyhow::Result<Vec<Setting>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    parse(&text, path, command).with_context(|| format!("{} is invalid", path.display()))
}

fn parse(text: &str, path: &Path, command: &Command) -> anyhow::Result<Vec<Setting>> {
    let document: Value = serde_yaml_ng::from_str(text)?;
    let mapping = match document {
        Value::Null => return Ok(Vec::new()),
        Value::Mapping(mapping) => mapping,
        _ => bail!("expected lines of the form `flag: value`"),
    };
    let known = known(command);
    let mut settings = Vec::new();
    for (key, value) in mapping {
        let Some(key) = key.as_str() else { bail!("{key:?} is not the name of a flag") };
        if !known.iter().any(|name| name == key) {
            match nearest(key, known.iter().map(String::as_str)) {
                Some(near) => bail!("unknown setting {key:?}; did you mean {near:?}?"),
                None => bail!("unknown setting {key:?}; `knarr config show` lists all settings"),
            }
        }
        let values = values(key, &value)?;
        if is_switch(command, key) && !(values.len() <= 1 && values.iter().all(|value| is_truth(value))) {
            bail!("{key} must be true or false, not {}", values.join(", "));
        }
        settings.push(Setting { key: key.to_owned(), values, file: path.to_owned() });
    }
    Ok(settings)
}

/// The flags of all commands that read the file: one file serves them all.
fn known(command: &Command) -> Vec<String> {
    let mut all: Vec<String> = flags(command)
        .filter_map(Arg::get_long)
        .filter(|name| !matches!(*name, "config" | "help" | "version" | "yes"))
        .map(str::to_owned)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Whether a flag has no value.
fn is_switch(command: &Command, key: &str) -> bool {
    let mut own = flags(command).filter(|argument| argument.get_long() == Some(key));
    own.any(|argument| matches!(argument.get_action(), ArgAction::SetTrue))
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let readers = READERS.iter().filter_map(|name| command.find_subcommand(name));
    readers.flat_map(|reader| std::iter::once(reader).chain(reader.get_subcommands())).flat_map(Command::get_arguments)
}

fn is_truth(value: &str) -> bool {
    matches!(value, "true" | "false")
}

fn values(key: &str, value: &Value) -> anyhow::Result<Vec<String>> {
    Ok(match value {
        Value::Null => Vec::new(),
        Value::Bool(value) => vec![value.to_string()],
        Value::Number(value) => vec![value.to_string()],
        Value::String(value) => vec![value.clone()],
        Value::Sequence(items) => {
            let items: anyhow::Result<Vec<Vec<String>>> = items.iter().map(|item| values(key, item)).collect();
            items?.concat()
        }
        _ => bail!("{key} must be a value or a list of values"),
    })
}

fn merge(
    mut typed: Vec<OsString>,
    settings: &[Setting],
    reader: &Command,
    in_environment: impl Fn(&std::ffi::OsStr) -> bool,
) -> Vec<OsString> {
    for setting in settings {
        // A setting of another command.
        let Some(argument) = reader.get_arguments().find(|argument| argument.get_long() == Some(&setting.key)) else {
            continue;
        };
        if is_typed(&typed, &setting.key) || argument.get_env().is_some_and(&in_environment) {
            continue;
        }
        typed.extend(arguments(setting, argument).into_iter().map(OsString::from));
    }
    typed
}

fn is_typed(typed: &[OsString], key: &str) -> bool {
    typed.iter().any(|word| {
        let word = word.to_string_lossy();
        word.strip_prefix("--").is_some_and(|flag| flag.split('=').next() == Some(key))
    })
}

fn arguments(setting: &Setting, argument: &Arg) -> Vec<String> {
    let flag = format!("--{}", setting.key);
    match argument.get_action() {
        ArgAction::SetTrue => match setting.values.first().map(String::as_str) {
            Some("true") => vec![flag],
            // Not set, as if it were absent.
            _ => Vec::new(),
        },
        _ => setting.values.iter().map(|value| format!("{flag}={value}")).collect(),
    }
}
