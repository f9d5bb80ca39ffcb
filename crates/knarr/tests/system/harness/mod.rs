//! Whole clusters for tests: real processes, each node in its own network namespace on one switch, with its own data
//! directory, containerd and cgroup. Dropping the [`Cluster`] removes everything, by the same command with which users
//! uninstall a node.
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
#![allow(dead_code, unused_imports)]

mod cluster;
mod devices;
mod grpc;
mod host;
mod image;
mod node;
mod registry;

pub use cluster::{Cluster, ClusterPermit, Options, turn};
pub use devices::{DevicePlugin, RESOURCE};
pub use grpc::GrpcHealth;
pub use host::{Switch, TestHost};
pub use image::{IMAGE, application, write as write_images};
pub use node::{Node, program};
pub use registry::{PASSWORD, Registry, USER};

use std::path::Path;
use std::time::{Duration, Instant};

/// Long enough for a loaded host; states are usually reached within a second.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// How long to wait for a state. An emulated host is slower: `KNARR_TEST_TIMEOUT` sets the number of seconds.
pub fn wait_timeout() -> Duration {
    let chosen = std::env::var("KNARR_TEST_TIMEOUT").ok().and_then(|seconds| seconds.parse().ok());
    chosen.map_or(TIMEOUT, Duration::from_secs)
}

pub use knarr_test_host::skip;

/// Whether this host can run nodes: root, and the programs that a node needs.
pub fn is_possible() -> bool {
    knarr_test_host::has(&["root", "containerd", "runc", "nft", "ip", "nsenter", "/bin/busybox"])
}

/// An IPv4-mapped address as IPv4.
pub fn plain(address: &str) -> &str {
    let inner = address.trim_matches(['[', ']']);
    inner.strip_prefix("::ffff:").unwrap_or(inner)
}

/// Waits for a state; panics on a timeout.
pub fn wait_for(what: &str, mut come: impl FnMut() -> bool) {
    let started = Instant::now();
    while !come() {
        assert!(started.elapsed() < wait_timeout(), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
