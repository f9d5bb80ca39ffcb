//! Upgrades: whether this program can use what another version of it left, and which version that was.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::check::{Finding, Verdict};
use crate::configuration;

/// The file of a data directory that names the version of the program that used it last.
const FILE: &str = "version";
const OWN: &str = env!("CARGO_PKG_VERSION");

/// How often a store is copied that changes its files meanwhile.
const ATTEMPTS: usize = 3;

/// Records that this version uses a data directory, and logs the previous version if it was another one.
pub fn record(data: &Path) {
    // With its commit: builds between releases differ, too.
    let own = format!("{OWN} (commit {}, Kubernetes {})\n", env!("KNARR_COMMIT"), knarr_version::KUBERNETES);
    match previous(data) {
        Some(previous) if previous == own.trim() => return,
        Some(previous) => tracing::info!(target: "knarr::server", from = previous, to = own.trim(), "upgraded"),
        None => {}
    }
    if let Err(error) = std::fs::write(data.join(FILE), own) {
        tracing::warn!(target: "knarr::server", %error, "cannot record the version in the data directory");
    }
}

/// The version that used a data directory last.
fn previous(data: &Path) -> Option<String> {
    std::fs::read_to_string(data.join(FILE)).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Whether this program can take over a data directory and its configuration file. Changes nothing, and works while
/// another version runs.
///
/// `shared` is what was found in the etcd that keeps the objects, if one does.
pub fn check(
    data: &Path,
    role: &str,
    file: Option<PathBuf>,
    shared: Option<anyhow::Result<SharedStore>>,
    command: &clap::Command,
) -> Vec<Finding> {
    let store = match shared {
        Some(found) => describe_shared(found),
        None => check_store(data),
    };
    vec![check_version(previous(data).as_deref()), check_settings(role, file, command), store]
}

/// The result of reading the objects of an etcd.
pub struct SharedStore {
    pub entries: usize,
    pub revision: u64,
}

fn describe_shared(found: anyhow::Result<SharedStore>) -> Finding {
    match found {
        Ok(SharedStore { entries, revision }) => finding(
            "store",
            Verdict::Good,
            format!("{entries} objects at revision {revision} can be read from etcd"),
            "",
        ),
        Err(error) => finding(
            "store",
            Verdict::Missing,
            format!("{error:#}"),
            "start the server or its etcd: whether this version can read the objects is not known",
        ),
    }
}

fn finding(name: &str, verdict: Verdict, found: impl Into<String>, remedy: &str) -> Finding {
    Finding { name: name.to_owned(), verdict, found: found.into(), remedy: remedy.to_owned() }
}

fn check_version(previous: Option<&str>) -> Finding {
    let Some(previous) = previous else { return finding("version", Verdict::Good, format!("{OWN}; none before"), "") };
    let older = number(OWN) < number(previous);
    let found = format!("{OWN}; {previous} before");
    match older {
        true => finding("version", Verdict::Poor, found, "save a snapshot first: going back is not tested"),
        false => finding("version", Verdict::Good, found, ""),
    }
}

/// The numbers of a version, to compare.
fn number(version: &str) -> Vec<u64> {
    let first = version.split_whitespace().next().unwrap_or_default();
    first.split(['.', '-']).map_while(|part| part.parse().ok()).collect()
}

fn check_settings(role: &str, file: Option<PathBuf>, command: &clap::Command) -> Finding {
    let name = file.clone().unwrap_or_else(|| configuration::FILE.into()).display().to_string();
    match configuration::show(role, file, true, command) {
        Ok(_) => finding("configuration", Verdict::Good, format!("{name} is valid"), ""),
        Err(error) => {
            finding("configuration", Verdict::Missing, format!("{error:#}"), "change the file before the upgrade")
        }
    }
}

fn check_store(data: &Path) -> Finding {
    let store = data.join("store");
    if !store.is_dir() {
        return finding("store", Verdict::Good, "there is none yet", "");
    }
    match read_copy(&store) {
        Ok(report) => {
            let found = format!("{} objects at revision {} can be read", report.entries, report.revision);
            finding("store", Verdict::Good, found, "")
        }
        Err(error) => finding(
            "store",
            Verdict::Missing,
            format!("{error:#}"),
            "keep the version that runs; `knarr store check` of a stopped server says more",
        ),
    }
}

/// Reads a copy of a store, for the original may be in use. A server that replaces files while they are copied is no
/// damage: then it is copied again.
fn read_copy(store: &Path) -> anyhow::Result<knarr_store::CheckReport> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let copy = tempfile::tempdir_in(store.parent().unwrap_or(store)).context("cannot copy the store")?;
        match copy_files(store, copy.path()).and_then(|()| Ok(knarr_store::check(copy.path())?)) {
            Ok(report) => return Ok(report),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("the store was not read")))
}

fn copy_files(from: &Path, to: &Path) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        // The reserve holds no data, and is large.
        if entry.file_type()?.is_file() && entry.file_name() != "reserve" {
            std::fs::copy(entry.path(), to.join(entry.file_name()))
                .with_context(|| format!("cannot copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_version_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(previous(directory.path()), None);
        record(directory.path());
        assert!(previous(directory.path()).unwrap().starts_with(OWN));
        for (previous, verdict) in
            [(None, Verdict::Good), (Some("0.0.9 Kubernetes v1.35.0"), Verdict::Good), (Some("99.1"), Verdict::Poor)]
        {
            assert_eq!(check_version(previous).verdict, verdict, "{previous:?}");
        }
    }

    #[test]
    fn an_agent_is_not_checked_as_a_server() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path();
        // An agent that has joined needs no token any more.
        let file = data.join("config.yaml");
        std::fs::write(&file, "server: https://10.0.0.1:6443\n").unwrap();
        let verdict = || {
            let role = crate::paths::role(data);
            (role, check_settings(role, Some(file.clone()), &crate::commands::command()).verdict)
        };
        assert_eq!(verdict(), ("server", Verdict::Missing), "never used");
        drop(crate::data_directory_lock::acquire(data).unwrap());
        assert_eq!(verdict(), ("agent", Verdict::Good));
        std::fs::create_dir(data.join("pki")).unwrap();
        for name in ["ca.crt", "ca.key"] {
            std::fs::write(data.join("pki").join(name), "").unwrap();
        }
        assert_eq!(verdict().0, "server");
    }

    #[test]
    fn settings_and_store_of_another_version_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        for (text, verdict) in [("node-name: a\n", Verdict::Good), ("no-such-flag: 1\n", Verdict::Missing)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(
                check_settings("server", Some(file.clone()), &crate::commands::command()).verdict,
                verdict,
                "{text}"
            );
        }
        assert_eq!(check_store(directory.path()).verdict, Verdict::Good);
        let store = directory.path().join("store");
        std::fs::create_dir(&store).unwrap();
        assert_eq!(check_store(directory.path()).verdict, Verdict::Missing);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "copies are removed");
    }
}
