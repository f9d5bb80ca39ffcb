//! The web page in a real browser: every page and action, on clusters that are changed and killed meanwhile.

mod accessible;
mod actions;
mod hostile;
mod journey;
mod many_pods;
mod outage;
mod session;
mod tour;

use crate::support::ControlPlane;

/// A link to the page, as the user of a kubeconfig.
fn link_of(kubeconfig: &std::path::Path) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_knarr"))
        .args(["ui", "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .expect("knarr starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A link to the page, as the administrator.
fn link(plane: &ControlPlane) -> String {
    link_of(&plane.kubeconfig())
}
