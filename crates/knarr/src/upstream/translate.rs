//! What the translations of all components share: passing flags on to the settings of Knarr's own command.

use std::ffi::OsString;

use clap::{Arg, ArgAction};
use knarr_component_flags::{Component, Given, Status, flags, status};

/// A command line of Knarr, and warnings about what it leaves out.
#[derive(Debug)]
pub struct Translation {
    command: &'static str,
    settings: Vec<String>,
    pub warnings: Vec<String>,
    clap: clap::Command,
}

/// Knarr's own command of a component.
pub fn command_name(component: Component) -> &'static str {
    match component {
        Component::ApiServer => "apiserver",
        Component::ControllerManager => "controller-manager",
        Component::Scheduler => "scheduler",
        Component::Kubelet => "kubelet",
        Component::Proxy => "proxy",
    }
}

impl Translation {
    pub fn new(component: Component) -> Self {
        let command = command_name(component);
        let clap = crate::commands::command().find_subcommand(command).cloned().unwrap_or_default();
        Translation { command, settings: Vec::new(), warnings: Vec::new(), clap }
    }

    /// Passes on all given flags whose status says so, and the settings of a configuration file.
    pub fn passing(given: &Given) -> Self {
        let component = given.component();
        let mut translation = Translation::new(component);
        for (name, values) in given.settings() {
            translation.set_all(name, values);
        }
        for flag in flags(component) {
            if let (Some(Status::Passed(target)), Some(values)) = (status(component, flag.name), given.given(flag.name))
            {
                translation.set_all(target, values);
            }
        }
        translation
    }

    /// Passes on the defaults of Kubernetes, where Knarr's differ, of flags that are not given.
    pub fn with_defaults(mut self, given: &Given, names: &[&str]) -> Self {
        for name in names.iter().filter(|name| !given.is_given(name)) {
            self.set_all(name, &given.values(name));
        }
        self
    }

    /// Sets one setting; an empty value leaves it unset.
    pub fn set(&mut self, name: &str, value: &str) {
        self.set_all(name, &[value.to_owned()]);
    }

    /// Sets a setting to an empty value, where Knarr's default is another.
    pub fn set_empty(&mut self, name: &str) {
        self.settings.push(format!("--{name}="));
    }

    pub fn set_all(&mut self, name: &str, values: &[String]) {
        let words = words(self.clap.get_arguments().find(|own| has_name(own, name)), name, values);
        self.settings.extend(words);
    }

    /// Leaves a setting at its default.
    pub fn unset(&mut self, name: &str) {
        let flag = format!("--{name}");
        self.settings.retain(|word| word.split('=').next() != Some(&flag));
    }

    /// Whether the setting was set.
    pub fn has(&self, name: &str) -> bool {
        let flag = format!("--{name}");
        self.settings.iter().any(|word| word.split('=').next() == Some(&flag))
    }

    /// Whether the setting was set to this value.
    pub fn is(&self, name: &str, value: &str) -> bool {
        self.settings.contains(&format!("--{name}={value}"))
    }

    /// The command line.
    pub fn words(&self) -> Vec<OsString> {
        let program = ["knarr", self.command].into_iter().map(str::to_owned);
        program.chain(self.settings.iter().cloned()).map(OsString::from).collect()
    }

    #[cfg(test)]
    pub fn settings(&self) -> &[String] {
        &self.settings
    }
}

pub fn has_name(argument: &Arg, name: &str) -> bool {
    argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
}

fn words(argument: Option<&Arg>, name: &str, values: &[String]) -> Vec<String> {
    let flag = format!("--{name}");
    let is_switch = argument.is_some_and(|own| matches!(own.get_action(), ArgAction::SetTrue));
    let is_single = argument.is_some_and(|own| matches!(own.get_action(), ArgAction::Set));
    let values: Vec<&String> = values.iter().filter(|value| !value.is_empty()).collect();
    match values.as_slice() {
        [] => Vec::new(),
        [value] if is_switch => {
            if value.as_str() == "true" {
                vec![flag]
            } else {
                Vec::new()
            }
        }
        values if is_single => {
            let joined = values.iter().map(|value| value.as_str()).collect::<Vec<_>>().join(",");
            vec![format!("{flag}={joined}")]
        }
        values => values.iter().map(|value| format!("{flag}={value}")).collect(),
    }
}
