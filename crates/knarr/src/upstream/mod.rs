//! The program by another name: a link called `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kubelet`,
//! `kube-proxy` or `etcd` takes the flags of that program of Kubernetes.
//!
//! In: the command line. Out: the command line of Knarr's own command, so that there is one place for each setting.
//! `translate` is what all components share; one file per component holds what is special to it.

mod api_server;
mod api_server_checks;
#[cfg(test)]
mod api_server_checks_tests;
mod api_server_files;
mod configuration_files;
mod controller_manager;
mod emulation;
mod etcd;
#[cfg(test)]
mod kubeadm_tests;
mod kubelet;
mod kubelet_checks;
mod proxy;
mod reported_version;
mod scheduler;
#[cfg(test)]
mod server_fields_tests;
mod store_host;
mod translate;
#[cfg(test)]
mod translate_tests;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use knarr_component_flags::{
    CommandLine, Component, Gate, Gates, Given, Status, gate_effect, gated_fields, help, parse, status,
};

use crate::error_message::error_message;
use translate::Translation;

/// Runs the component that the program's name stands for; `None` if it is Knarr's own.
pub fn run(words: &[OsString]) -> Option<ExitCode> {
    let program = Path::new(words.first()?).file_name()?.to_str()?;
    if program == "etcd" {
        return Some(etcd::run(&words[1..]));
    }
    let component = Component::from_name(program)?;
    let ended = texts(&words[1..]).and_then(|words| run_component(component, &words));
    Some(ended.map_or_else(
        |error| {
            eprintln!("Error: {}", error_message(&error));
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

fn texts(words: &[OsString]) -> anyhow::Result<Vec<String>> {
    let text = |word: &OsString| word.to_str().map(str::to_owned).with_context(|| format!("{word:?} is not UTF-8"));
    words.iter().map(text).collect()
}

fn run_component(component: Component, words: &[String]) -> anyhow::Result<()> {
    let line = parse(component, words).map_err(|error| match component {
        Component::Kubelet => anyhow!("failed to parse kubelet flag: {error}"),
        _ => anyhow!(error),
    })?;
    let given = match line {
        CommandLine::Help => {
            let written = std::io::Write::write_all(&mut std::io::stdout(), help(component).as_bytes());
            return crate::commands::common::unless_closed(written);
        }
        CommandLine::Version(form) => {
            println!("{}", version(&form));
            return Ok(());
        }
        CommandLine::Run(given) => given,
    };
    if let Some(version) = given.given("version").and_then(<[String]>::first) {
        reported_version::check(version)
            .map_err(|why| anyhow!("invalid argument {version:?} for \"--version\" flag: {why}"))?;
        knarr_version::report_as(version.clone());
    }
    let mut warnings = deprecated(&given);
    let (given, of_files) = configuration_files::apply(given)?;
    warnings.extend(of_files);
    crate::commands::common::set_verbosity(given.value("v").parse().unwrap_or_default());
    let mut translation = translation(&given)?;
    for warning in warnings.iter().chain(&translation.warnings) {
        eprintln!("{}: {warning}", component.name());
    }
    let is_in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if !is_in_pod && needs_kubeconfig(&given, &translation) {
        bail!(
            "invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable"
        );
    }
    if component == Component::ApiServer {
        api_server::check_files(&given)?;
        // What cannot be used is refused before the store is waited for.
        crate::commands::check_api_server(translation.words())?;
        api_server::set_store(&given, &mut translation)?;
    }
    crate::commands::run_component(translation.words())
}

/// Whether neither a flag nor a file says where the API server is. The kubeconfig of whoever starts a component is not for components.
fn needs_kubeconfig(given: &Given, translation: &Translation) -> bool {
    match given.component() {
        Component::ApiServer | Component::Kubelet => false,
        // Its file may name one.
        Component::Scheduler if given.is_given("config") => false,
        Component::Scheduler | Component::ControllerManager | Component::Proxy => {
            !translation.has("kubeconfig") && !translation.has("master")
        }
    }
}

/// What `--version` prints: the release, or everything that is known of the build.
fn version(form: &str) -> String {
    let release = knarr_version::KUBERNETES;
    match form {
        "raw" => format!(
            "version.Info{{Major:{:?}, Minor:{:?}, GitVersion:{release:?}, GitCommit:{:?}, Platform:{:?}}}",
            knarr_version::MAJOR,
            knarr_version::MINOR,
            env!("KNARR_COMMIT"),
            knarr_version::platform()
        ),
        _ => format!("Kubernetes {release}"),
    }
}

/// The command line of Knarr for the flags of a component, and what has no effect.
fn translation(given: &Given) -> anyhow::Result<Translation> {
    emulation::check(given)?;
    let gates = Gates::of(given).map_err(|error| match given.component() {
        Component::Kubelet => anyhow!("failed to set feature gates from initial flags-based config: {error}"),
        _ => anyhow!(error),
    })?;
    crate::feature_gates::set(&gates);
    let mut translation = match given.component() {
        Component::ApiServer => api_server::translate(given, &gates)?,
        Component::ControllerManager => controller_manager::translate(given)?,
        Component::Scheduler => scheduler::translate(given)?,
        Component::Kubelet => kubelet::translate(given, &gates)?,
        Component::Proxy => proxy::translate(given)?,
    };
    let mut warnings = without_effect(given)?;
    warnings.extend(gate_warnings(&gates));
    warnings.append(&mut translation.warnings);
    translation.warnings = warnings;
    Ok(translation)
}

/// A warning for each deprecated flag of the command line.
fn deprecated(given: &Given) -> Vec<String> {
    let is_deprecated =
        |name: &&str| knarr_component_flags::flag(given.component(), name).is_some_and(|flag| flag.is_deprecated);
    given.names().filter(is_deprecated).map(|name| format!("Flag --{name} has been deprecated")).collect()
}

/// A warning for each flag that has no effect here; flags that cannot be honoured are refused.
fn without_effect(given: &Given) -> anyhow::Result<Vec<String>> {
    let component = given.component();
    let mut warnings = Vec::new();
    for name in given.names() {
        let Some(flag) = knarr_component_flags::flag(component, name) else { continue };
        let (value, default) = (given.values(name), flag.default_values());
        // Files that tools write have all fields; an empty text asks for nothing.
        if value.iter().all(String::is_empty) && !value.is_empty() {
            continue;
        }
        match status(component, name) {
            Some(Status::Ignored("")) if value != default => warnings.push(format!("--{name} has no effect")),
            Some(Status::Ignored(why)) if value != default => {
                warnings.push(format!("--{name} has no effect: {why}"));
            }
            Some(Status::Always(always, _)) if value.join(",") != always => {
                warnings.push(format!("--{name} has no effect: it is always {always}"));
            }
            Some(Status::Refused(why)) if value != default => {
                return Err(anyhow!("--{name} is not supported: {why}"));
            }
            _ => {}
        }
    }
    Ok(warnings)
}

fn gate_warnings(gates: &Gates) -> Vec<String> {
    let without = gates.changed().filter(|(gate, _)| gate_effect(gate.name).is_none());
    // AllAlpha and AllBeta would name every gate.
    let named = without.filter(|(gate, _)| !matches!(gate.name, "AllAlpha" | "AllBeta"));
    let named = named.map(|(gate, on)| format!("feature gate {}={on} has no effect", gate.name));
    let is_only_stored = |gate: &Gate| gated_fields().iter().any(|row| row.gate == gate.name && !row.has_effect);
    let stored = gates.changed().filter(|(gate, on)| *on && is_only_stored(gate));
    let stored =
        stored.map(|(gate, _)| format!("feature gate {}=true keeps its fields, but nothing acts on them", gate.name));
    named.chain(stored).collect()
}
