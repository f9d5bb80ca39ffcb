//! Links the program so that it can be loaded at any address, with its relocations packed.
//!
//! Address randomisation costs about 100,000 relocations at each start. Packed (`DT_RELR`) they take a thirtieth of the space
//! and are applied in one pass, which matters to the CNI plugin: it is started once per pod. The tables that hold
//! addresses are read-only after that (full RELRO).

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,relro,-z,now,-z,pack-relative-relocs");
    println!("cargo::rustc-env=KNARR_COMMIT={}", commit());
}

/// The commit that is built, for `knarr --version`. Debug builds don't name it: they would be linked again after each commit.
fn commit() -> String {
    let is_debug = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    if is_debug {
        return "unknown".to_owned();
    }
    // HEAD names a branch; the log of HEAD changes with each commit, too.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-env-changed=KNARR_COMMIT");
    let given = std::env::var("KNARR_COMMIT").ok();
    given.or_else(|| git(&["rev-parse", "--short=12", "HEAD"])).unwrap_or_else(|| "unknown".to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
