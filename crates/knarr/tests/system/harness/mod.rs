//! Whole clusters for tests: real processes, each node in a network namespace of its own on one switch, with a data
//! directory, a containerd and a cgroup of its own. Everything goes when the [`Cluster`] is dropped, by the very command
//! that users remove a node with.
//!
//! A test reads like this:
//! ```ignore
//! if !harness::is_possible() { return; }
//! let cluster = Cluster::start(2);
//! cluster.apply(MANIFEST);
//! cluster.wait_for("the pod to be ready", || cluster.ready_pods("app=web") == 2);
//! cluster.nodes[1].kill();
//! ```

// Not every test uses all of it.
#![allow(dead_code)]

mod cluster;
mod devices;
mod grpc;
mod image;
mod machine;
mod node;
mod registry;

pub use cluster::{Cluster, Options, turn};
pub use devices::{DevicePlugin, RESOURCE};
pub use grpc::GrpcHealth;
pub use image::{IMAGE, write as write_images};
pub use machine::{Machine, Switch};
pub use node::Node;
pub use registry::{PASSWORD, Registry, USER};

use std::path::Path;
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; what is waited for usually comes within a second.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How long a state is waited for. On a machine that is only emulated everything takes longer: `KNARR_TEST_PATIENCE` says
/// how many seconds.
pub fn patience() -> Duration {
    let chosen = std::env::var("KNARR_TEST_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    chosen.map_or(PATIENCE, Duration::from_secs)
}

/// Whether this machine can run nodes: root, and the programs that a node needs.
pub fn is_possible() -> bool {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];
    let found = |name: &str| folders.iter().any(|folder| Path::new(folder).join(name).exists());
    let missing: Vec<&str> = ["containerd", "runc", "nft", "ip", "nsenter"].into_iter().filter(|n| !found(n)).collect();
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root || !missing.is_empty() || !Path::new("/bin/busybox").exists() {
        eprintln!("nothing is tested here: a node needs root, busybox and {missing:?}");
        return false;
    }
    true
}

/// An address without the form that a listener for both families gives it.
pub fn plain(address: &str) -> &str {
    let inner = address.trim_matches(['[', ']']);
    inner.strip_prefix("::ffff:").unwrap_or(inner)
}

/// Waits for a state; panics with what was waited for when it does not come.
pub fn wait_for(what: &str, mut come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < patience(), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
