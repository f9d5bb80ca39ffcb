//! The cost of Services: ten of them, then ten thousand with fifty thousand endpoints. Measures the first sync, one endpoint's
//! change, memory, and whether a connection takes longer with more Services.
//!
//! Each count has its own process and network namespace. Needs root. Started with `CNI_COMMAND` set, this program is the
//! CNI plugin.

#[allow(dead_code)]
#[path = "../tests/kernel/api.rs"]
mod api;
#[allow(dead_code)]
#[path = "../tests/kernel/host.rs"]
mod host;
#[allow(dead_code)]
#[path = "../tests/kernel/scale.rs"]
mod scale;

use std::process::{Command, ExitCode};

const COUNTS: [u32; 2] = [10, 10_000];

fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_some() {
        return knarr_network::cni_main();
    }
    let count = std::env::args().skip_while(|argument| argument != "--services").nth(1);
    if let Some(count) = count.and_then(|text| text.parse().ok()) {
        if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
            eprintln!("no network namespace can be made: {error}");
            return ExitCode::FAILURE;
        }
        scale::measure(count);
        return ExitCode::SUCCESS;
    }
    for count in COUNTS {
        let own = std::env::current_exe().expect("the path of this program");
        let status = Command::new(own).args(["--services", &count.to_string()]).status().expect("a process");
        if !status.success() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
