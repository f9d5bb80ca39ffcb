//! Compiles the pause program, which goes into the pause image, with the same compiler as everything else.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=pause/pause.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR")).join("pause");
    // For musl, rustc would add its own start files, which call a `main` that does not exist.
    let is_musl = variable("CARGO_CFG_TARGET_ENV") == "musl";
    let own_start: &[&str] = if is_musl { &["-C", "link-self-contained=no"] } else { &[] };
    // Set where this target has a linker of its own: the host's links for no other architecture.
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let linker = std::env::var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}"));
    let status = Command::new(variable("RUSTC"))
        .args(["--edition", "2024", "--crate-type", "bin", "--crate-name", "pause"])
        .args(["-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols", "-C", "relocation-model=static"])
        .args(["-C", "link-arg=-nostartfiles", "-C", "link-arg=-nostdlib", "-C", "link-arg=-static"])
        .args(["-C", "link-arg=-Wl,--build-id=none", "-C", "link-arg=-no-pie"])
        .args(own_start)
        .args(linker.ok())
        .args(["--target", &variable("TARGET")])
        .arg("-o")
        .arg(&out)
        .arg("pause/pause.rs")
        .status()
        .expect("the compiler starts");
    assert!(status.success(), "the pause program did not compile");
}
