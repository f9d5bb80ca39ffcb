//! `--emulated-version` and `--min-compatibility-version`: the releases that a component behaves as, and is compatible with.
//!
//! Knarr has the behaviour of one release. Its own version is accepted, what Kubernetes refuses is refused with its messages,
//! and the other versions are refused by name rather than ignored: whoever emulates an older release relies on it.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use knarr_component_flags::Given;
use knarr_version::{MAJOR, MINOR, RELEASE};

/// The component whose version the flags set if they name none.
const DEFAULT: &str = "kube";
/// How many releases back Kubernetes emulates.
const EMULATED_RELEASES: u64 = 3;

/// Major and minor number.
type Version = (u64, u64);

/// Refuses versions that this component does not have.
pub fn check(given: &Given) -> anyhow::Result<()> {
    let own: Version = (MAJOR.parse()?, MINOR.parse()?);
    let floor = (own.0, own.1 - EMULATED_RELEASES);
    let emulated = requested(given, "emulated-version")?;
    let previous = |version: Version| (version.0, version.1.saturating_sub(1)).max(floor);
    let is_emulated_given = emulated.is_some();
    let emulated = emulated.unwrap_or(own);
    let compatible = requested(given, "min-compatibility-version")?.unwrap_or_else(|| previous(emulated));
    let errors = errors(given, own, floor, emulated, compatible);
    match errors.as_slice() {
        [] => {}
        [one] => bail!("{one}"),
        several => bail!("[{}]", several.join(", ")),
    }
    if is_emulated_given && emulated != own {
        bail!("--emulated-version={} is not supported: Knarr behaves as Kubernetes {RELEASE} alone", text(emulated));
    }
    if compatible != previous(own) {
        let (given, usual) = (text(compatible), text(previous(own)));
        bail!("--min-compatibility-version={given} is not supported: Knarr is compatible with {usual} and later");
    }
    Ok(())
}

/// What Kubernetes refuses.
fn errors(given: &Given, own: Version, floor: Version, emulated: Version, compatible: Version) -> Vec<String> {
    let mut found = Vec::new();
    if !(floor..=own).contains(&emulated) {
        let (version, floor) = (text(emulated), text(floor));
        found.push(format!("emulation version {version} is not between [{floor}, {RELEASE}.0]"));
    }
    if compatible > emulated || compatible < floor {
        let (version, floor, emulated) = (text(compatible), text(floor), text(emulated));
        found.push(format!("minCompatibilityVersion version {version} is not between [{floor}, {emulated}]"));
    }
    let forward = [
        ("emulation-forward-compatible", "EmulationForwardCompatible"),
        ("runtime-config-emulation-forward-compatible", "RuntimeConfigEmulationForwardCompatible"),
    ];
    let forward = forward.iter().filter(|(flag, _)| emulated == own && given.is_on(flag));
    found.extend(forward.map(|(_, option)| {
        format!(
            "ServerRunOptions.{option} cannot be set to true if the emulation version is the same as the binary version"
        )
    }));
    found
}

fn text(version: Version) -> String {
    format!("{}.{}", version.0, version.1)
}

/// The version that a flag sets for Kubernetes itself.
fn requested(given: &Given, flag: &str) -> anyhow::Result<Option<Version>> {
    let mut versions: BTreeMap<String, Version> = BTreeMap::new();
    for pair in given.values(flag) {
        let (component, version) = pair.split_once('=').unwrap_or((DEFAULT, pair.as_str()));
        let (component, version) = (component.trim().to_owned(), parse(version.trim())?);
        let (version, patch) = version;
        if patch != 0 {
            bail!("patch version not allowed, got: {component}={}.{patch}", text(version));
        }
        if let Some(known) = versions.insert(component.clone(), version) {
            bail!("duplicate version flag, {component}={} and {component}={}", text(known), text(version));
        }
    }
    match versions.keys().find(|component| *component != DEFAULT) {
        Some(component) => bail!("component not registered: {component}"),
        None => Ok(versions.remove(DEFAULT)),
    }
}

/// Major, minor and patch number of `v1.36`, `1.36` or `1.36.0`.
fn parse(given: &str) -> anyhow::Result<(Version, u64)> {
    let numbers = given.strip_prefix('v').unwrap_or(given);
    let end = numbers.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(numbers.len());
    let numbers = numbers[..end].trim_end_matches('.');
    if numbers.is_empty() || numbers.starts_with('.') {
        bail!("could not parse {given:?} as version");
    }
    let numbers: Vec<&str> = numbers.split('.').collect();
    if numbers.len() < 2 {
        bail!("illegal version string {given:?}");
    }
    let number = |index: usize| -> anyhow::Result<u64> {
        let Some(digits) = numbers.get(index) else { return Ok(0) };
        digits.parse().map_err(|_| anyhow!("illegal non-numeric version component {digits:?} in {given:?}"))
    };
    Ok(((number(0)?, number(1)?), number(2)?))
}

#[cfg(test)]
mod tests {
    use knarr_component_flags::{CommandLine, Component, parse};

    use super::*;

    fn checked(line: &str) -> Result<(), String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let CommandLine::Run(given) = parse(Component::ApiServer, &words).unwrap() else { panic!("{line}") };
        check(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn the_own_release_is_accepted() {
        for line in [
            "",
            "--emulated-version=1.36",
            "--emulated-version=v1.36",
            "--emulated-version=1.36.0",
            "--emulated-version=kube=1.36 --min-compatibility-version=kube=1.35",
            "--min-compatibility-version=1.35",
            "--emulation-forward-compatible=false",
        ] {
            assert_eq!(checked(line), Ok(()), "{line}");
        }
    }

    #[test]
    fn others_are_refused() {
        for (line, message) in [
            // Kubernetes' messages.
            (
                "--emulated-version=1.20",
                "[emulation version 1.20 is not between [1.33, 1.36.0], minCompatibilityVersion version 1.33 is not between \
                 [1.33, 1.20]]",
            ),
            ("--emulated-version=1.37", "emulation version 1.37 is not between [1.33, 1.36.0]"),
            ("--emulated-version=foo", "could not parse \"foo\" as version"),
            ("--emulated-version=1", "illegal version string \"1\""),
            ("--emulated-version=1.36.4", "patch version not allowed, got: kube=1.36.4"),
            ("--emulated-version=1.36,kube=1.36", "duplicate version flag, kube=1.36 and kube=1.36"),
            ("--emulated-version=wardle=1.2", "component not registered: wardle"),
            ("--min-compatibility-version=1.32", "minCompatibilityVersion version 1.32 is not between [1.33, 1.36]"),
            (
                "--emulation-forward-compatible",
                "ServerRunOptions.EmulationForwardCompatible cannot be set to true if the emulation version is the same as \
                 the binary version",
            ),
            // What Kubernetes has and Knarr does not.
            (
                "--emulated-version=1.35",
                "--emulated-version=1.35 is not supported: Knarr behaves as Kubernetes 1.36 alone",
            ),
            (
                "--min-compatibility-version=1.36",
                "--min-compatibility-version=1.36 is not supported: Knarr is compatible with 1.35 and later",
            ),
        ] {
            assert_eq!(checked(line), Err(message.to_owned()), "{line}");
        }
    }
}
