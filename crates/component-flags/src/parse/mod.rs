//! Parses a command line as the Go programs do (pflag), from the words to the values of each flag.

use std::collections::BTreeMap;

use crate::table::{self, Flag};
use crate::{Component, go, value};

/// What a command line requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    Run(Given),
    Help,
    /// What `--version` is to print.
    Version(String),
}

/// The flags that were given, with their values in normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    component: Component,
    values: BTreeMap<&'static str, Vec<String>>,
    /// Settings of Knarr that a configuration file sets and no flag does.
    settings: BTreeMap<&'static str, Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("unknown flag: --{0}")]
    UnknownFlag(String),
    #[error("unknown shorthand flag: {} in -{}", quote_rune(*.0), .1)]
    UnknownShorthand(char, String),
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag needs an argument: --{0}")]
    ValueRequired(String),
    #[error("flag needs an argument: {} in -{}", quote_rune(*.0), .1)]
    ShorthandValueRequired(char, String),
    #[error("invalid argument {} for {} flag: {reason}", go::quote(.value), go::quote(.flag))]
    InvalidValue { flag: String, value: String, reason: String },
    #[error("{} does not take any arguments, got [{}]", go::quote(.0), quoted(.1))]
    Arguments(&'static str, Vec<String>),
    #[error("unknown command {0}")]
    UnknownCommand(String),
}

fn quote_rune(letter: char) -> String {
    format!("'{letter}'")
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| go::quote(word)).collect::<Vec<_>>().join(" ")
}

impl Given {
    /// Nothing given.
    pub fn empty(component: Component) -> Self {
        Given { component, values: BTreeMap::new(), settings: BTreeMap::new() }
    }

    pub fn component(&self) -> Component {
        self.component
    }

    /// The flags that were given, by name.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    pub fn is_given(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The values of a flag if it was given.
    pub fn given(&self, name: &str) -> Option<&[String]> {
        self.values.get(name).map(Vec::as_slice)
    }

    /// The values of a flag, or its default.
    pub fn values(&self, name: &str) -> Vec<String> {
        let default = || table::flag(self.component, name).map(Flag::default_values).unwrap_or_default();
        self.given(name).map_or_else(default, <[String]>::to_vec)
    }

    /// The value of a flag with one value, or its default.
    pub fn value(&self, name: &str) -> String {
        self.values(name).into_iter().next().unwrap_or_default()
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) == "true"
    }

    /// Settings of Knarr that a configuration file sets and no flag does.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        self.settings.iter().map(|(name, values)| (*name, values.as_slice()))
    }

    pub(crate) fn set_setting(&mut self, name: &'static str, values: Vec<String>) {
        self.settings.insert(name, values);
    }

    /// Sets a flag from a configuration file. Feature gates are merged, gate by gate.
    pub(crate) fn configure(&mut self, name: &str, values: &[String], flags_win: bool) -> Result<(), ParseError> {
        let Some(flag) = table::flag(self.component, name) else { return Ok(()) };
        let given = self.values.remove(flag.name);
        if flags_win && flag.name != "feature-gates" && given.is_some() {
            self.values.extend(given.map(|given| (flag.name, given)));
            return Ok(());
        }
        if values.is_empty() {
            self.values.insert(flag.name, Vec::new());
        }
        for value in values {
            self.set(flag, value)?;
        }
        if let (Some(given), "feature-gates") = (given, flag.name) {
            self.values.entry(flag.name).or_default().extend(given);
        }
        Ok(())
    }

    /// Sets a flag from its text; the first text replaces the default, further ones add to lists.
    fn set(&mut self, flag: &'static Flag, text: &str) -> Result<(), ParseError> {
        let read = value::read(self.component, flag, text).map_err(|reason| ParseError::InvalidValue {
            flag: flag
                .shorthand
                .map_or_else(|| format!("--{}", flag.name), |letter| format!("-{letter}, --{}", flag.name)),
            value: text.to_owned(),
            reason,
        })?;
        let values = self.values.entry(flag.name).or_default();
        if !flag.has_many_values() {
            values.clear();
        }
        values.extend(read);
        Ok(())
    }
}

/// Parses the words after the program's name.
pub fn parse(component: Component, words: &[String]) -> Result<CommandLine, ParseError> {
    let mut given = Given::empty(component);
    let mut arguments = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        if word == "--" {
            arguments.extend_from_slice(rest);
            break;
        }
        if word.starts_with("--") {
            rest = long(&mut given, word, rest)?;
        } else if word.len() > 1 && word.starts_with('-') {
            rest = short(&mut given, word, rest)?;
        } else {
            arguments.push(word.clone());
        }
    }
    finish(given, arguments)
}

fn finish(mut given: Given, arguments: Vec<String>) -> Result<CommandLine, ParseError> {
    let component = given.component;
    let is_help = given.is_on("help");
    given.values.remove("help");
    match arguments.first() {
        Some(first) if component == Component::Kubelet => return Err(ParseError::UnknownCommand(first.clone())),
        Some(_) if !is_help => return Err(ParseError::Arguments(component.name(), arguments)),
        _ => {}
    }
    if is_help {
        return Ok(CommandLine::Help);
    }
    let requested = given.value("version");
    // A version with its `v` is the one to report, and stays a flag.
    if requested.starts_with('v') {
        return Ok(CommandLine::Run(given));
    }
    given.values.remove("version");
    Ok(match requested.as_str() {
        "false" | "" => CommandLine::Run(given),
        _ => CommandLine::Version(requested),
    })
}

fn long<'w>(given: &mut Given, word: &str, rest: &'w [String]) -> Result<&'w [String], ParseError> {
    let body = &word[2..];
    if body.starts_with(['-', '=']) {
        return Err(ParseError::Syntax(word.to_owned()));
    }
    let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
    let flag = table::flag(given.component, name).ok_or_else(|| ParseError::UnknownFlag(name.to_owned()))?;
    match (value.or(flag.value_if_bare()), rest.split_first()) {
        (Some(value), _) => given.set(flag, value).map(|()| rest),
        (None, Some((value, rest))) => given.set(flag, value).map(|()| rest),
        (None, None) => Err(ParseError::ValueRequired(name.to_owned())),
    }
}

fn short<'w>(given: &mut Given, word: &str, rest: &'w [String]) -> Result<&'w [String], ParseError> {
    let mut letters = &word[1..];
    while let Some(letter) = letters.chars().next() {
        let all = letters;
        letters = &letters[letter.len_utf8()..];
        let mut own = table::flags(given.component).iter();
        let Some(flag) = own.find(|flag| flag.shorthand == Some(letter)) else {
            return Err(ParseError::UnknownShorthand(letter, all.to_owned()));
        };
        if let Some(value) = letters.strip_prefix('=').filter(|value| !value.is_empty()) {
            given.set(flag, value)?;
            return Ok(rest);
        }
        if let Some(value) = flag.value_if_bare() {
            given.set(flag, value)?;
        } else if !letters.is_empty() {
            given.set(flag, letters)?;
            return Ok(rest);
        } else if let Some((value, rest)) = rest.split_first() {
            given.set(flag, value)?;
            return Ok(rest);
        } else {
            return Err(ParseError::ShorthandValueRequired(letter, all.to_owned()));
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests;
