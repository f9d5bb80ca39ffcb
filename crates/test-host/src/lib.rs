//! What tests need of the host: root, programs, devices. A test that lacks something is left out, but fails in CI, where
//! nobody would notice that it never runs.

use std::path::{Path, PathBuf};

/// Where programs of the administrator are, which are not in everybody's PATH.
const SYSTEM_DIRECTORIES: &str = "/usr/sbin:/sbin";

/// Whether everything is there: `root`, names of programs, and absolute paths. Panics in CI if something is missing.
pub fn has(needs: &[&str]) -> bool {
    let missing = missing(needs, nix::unistd::geteuid().is_root());
    if !missing.is_empty() {
        skip(&format!("this test needs {}", missing.join(", ")));
    }
    missing.is_empty()
}

/// Says why a test is left out. Panics in CI.
pub fn skip(reason: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{reason}");
    eprintln!("skipped: {reason}");
}

fn missing<'a>(needs: &[&'a str], is_root: bool) -> Vec<&'a str> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> =
        std::env::split_paths(&own).chain(std::env::split_paths(SYSTEM_DIRECTORIES)).collect();
    let is_there = |need: &str| match need {
        "root" => is_root,
        path if path.starts_with('/') => Path::new(path).exists(),
        program => directories.iter().any(|directory| directory.join(program).exists()),
    };
    needs.iter().copied().filter(|need| !is_there(need)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let needs = ["root", "sh", "/dev/null", "no-such-program", "/no/such/device"];
        assert_eq!(missing(&needs, true), ["no-such-program", "/no/such/device"]);
        assert_eq!(missing(&["root", "sh"], false), ["root"]);
    }
}
