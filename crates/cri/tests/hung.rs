//! A containerd that lives but does not respond. Needs root, containerd and runc.

use std::path::Path;
use std::time::{Duration, Instant};

use knarr_cri::containerd::{Containerd, HealthChecks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The process that runs with this configuration.
fn process_of(config: &Path) -> Option<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = entries.filter_map(|entry| {
        let pid = entry.file_name().to_string_lossy().parse().ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&command).contains(&*config.to_string_lossy()).then(|| Pid::from_raw(pid))
    });
    found.next()
}

/// Kills what was started, whatever the outcome of the test.
struct Cleanup<'a>(&'a Path);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        while let Some(pid) = process_of(self.0) {
            let _ = kill(pid, Signal::SIGKILL);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_containerd_is_restarted() {
    if !knarr_test_host::has(&["root", "containerd", "runc"]) {
        return;
    }
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("containerd");
    let config = directory.join("config.toml");
    let _cleanup = Cleanup(&config);
    let containerd = Containerd::new(&directory, &parent.path().join("bin"), &parent.path().join("net.d"));
    let runtime = containerd.ensure().await.expect("containerd starts");
    let hung = process_of(&config).expect("its process");
    let checks = HealthChecks {
        interval: Duration::from_millis(100),
        response_timeout: Duration::from_secs(1),
        unresponsive_timeout: Duration::from_secs(3),
    };
    let supervising = tokio::spawn(containerd.supervise(runtime.clone(), checks));
    kill(hung, Signal::SIGSTOP).expect("it is stopped");
    let deadline = Instant::now() + Duration::from_secs(240);
    loop {
        let is_replaced = process_of(&config).is_some_and(|process| process != hung);
        let response = tokio::time::timeout(Duration::from_secs(5), runtime.version()).await;
        if is_replaced && response.is_ok_and(|version| version.is_ok()) {
            break;
        }
        assert!(Instant::now() < deadline, "containerd hangs on");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    supervising.abort();
}
