//! Programs that a node calls.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::Finding;

pub const INSTALL: &str = "apt-get install ";

/// Program, Debian's package, whether it is the runtime's, and the flag by which it tells its version in a line.
const PROGRAMS: [(&str, &str, bool, Option<&str>); 5] = [
    ("containerd", "containerd", true, Some("--version")),
    ("containerd-shim-runc-v2", "containerd", true, None),
    ("runc", "runc", true, Some("--version")),
    ("nft", "nftables", false, Some("--version")),
    ("conntrack", "conntrack", false, Some("--version")),
];

/// With versions it is asked of each program, which takes a moment.
pub fn all(own_runtime: bool, with_versions: bool) -> Vec<Finding> {
    let needed = PROGRAMS.iter().filter(|(_, _, is_runtime, _)| own_runtime || !is_runtime);
    needed.map(|(name, package, _, version)| look(name, package, version.filter(|_| with_versions))).collect()
}

fn look(name: &str, package: &str, version: Option<&str>) -> Finding {
    match find(name) {
        Some(path) => {
            let said = version.and_then(|flag| Command::new(&path).arg(flag).output().ok());
            let said = said.map(|output| if output.stdout.is_empty() { output.stderr } else { output.stdout });
            let line = said.and_then(|text| String::from_utf8_lossy(&text).lines().next().map(str::to_owned));
            Finding::good(name, line.unwrap_or_else(|| path.display().to_string()))
        }
        None if name == "conntrack" => Finding::poor(
            name,
            "not found: flows to endpoints that end are not forgotten",
            format!("{INSTALL}{package}"),
        ),
        None => Finding::missing(name, "not found", format!("{INSTALL}{package}")),
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0))
}
