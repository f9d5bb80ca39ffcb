//! Programs that a node runs.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use knarr_cri::containerd;

use super::Finding;

pub const INSTALL: &str = "apt-get install ";

/// Program, its Debian package, whether the container runtime needs it, and the flag that prints its version.
const PROGRAMS: [(&str, &str, bool, Option<&str>); 5] = [
    ("containerd", "containerd", true, Some("--version")),
    ("containerd-shim-runc-v2", "containerd", true, None),
    ("runc", "runc", true, Some("--version")),
    ("nft", "nftables", false, Some("--version")),
    ("conntrack", "conntrack", false, Some("--version")),
];

/// `with_versions` runs each program, which takes a moment.
pub fn all(own_runtime: bool, with_versions: bool) -> Vec<Finding> {
    let needed = PROGRAMS.iter().filter(|(_, _, is_runtime, _)| own_runtime || !is_runtime);
    needed.map(|(name, package, _, version)| check_program(name, package, version.filter(|_| with_versions))).collect()
}

fn check_program(name: &str, package: &str, version: Option<&str>) -> Finding {
    match find(name) {
        Some(path) => {
            let output = version.and_then(|flag| Command::new(&path).arg(flag).output().ok());
            let printed = output.map(|output| if output.stdout.is_empty() { output.stderr } else { output.stdout });
            let line = printed.and_then(|text| String::from_utf8_lossy(&text).lines().next().map(str::to_owned));
            of_version(name, line.unwrap_or_else(|| path.display().to_string()))
        }
        None if name == "conntrack" => Finding::poor(
            name,
            "not found: flows to terminated endpoints are not deleted",
            format!("{INSTALL}{package}"),
        ),
        None => Finding::missing(name, "not found", format!("{INSTALL}{package}")),
    }
}

/// Whether a program is recent enough.
fn of_version(name: &str, printed: String) -> Finding {
    let (major, minor) = containerd::OLDEST_RELEASE;
    match containerd::release(&printed).filter(|_| name == "containerd") {
        Some(release) if release < (major, minor) => {
            Finding::missing(name, printed, format!("install containerd {major}.{minor} or later"))
        }
        _ => Finding::good(name, printed),
    }
}

fn find(name: &str) -> Option<PathBuf> {
    find_in(name, &std::env::var_os("PATH")?)
}

/// A program in the directories of a `PATH`.
pub fn find_in(name: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|directory| directory.join(name))
        .find(|path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    #[test]
    fn a_containerd_without_the_interface_is_named() {
        for (name, printed, verdict) in [
            ("containerd", "containerd github.com/containerd/containerd 1.5.9-0ubuntu3", Verdict::Missing),
            ("containerd", "containerd github.com/containerd/containerd 1.6.20~ds1", Verdict::Good),
            ("containerd", "/usr/bin/containerd", Verdict::Good),
            ("runc", "runc version 1.1.5+ds1", Verdict::Good),
        ] {
            assert_eq!(of_version(name, printed.to_owned()).verdict, verdict, "{printed}");
        }
    }
}
