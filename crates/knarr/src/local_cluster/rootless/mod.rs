//! Clusters of ordinary users: all of a cluster is in namespaces of its own, where the user is root.
//!
//! `launch` creates the namespaces: `namespace` is the process that becomes root in them and starts `init`, the first process
//! within. All other work is done by this program again, entered into the namespaces (`enter`), as root does it on a host.
//! Sockets that listen on the host are bound before and inherited; `outgoing` is the way out.

mod cgroup;
mod descriptors;
mod enter;
mod init;
mod launch;
mod namespace;
mod outgoing;
mod requirements;
mod subordinate;

pub use enter::{Task, run as run_inside};
pub use init::run as run_init;
pub use launch::{Purpose, find, start, stop};
pub use namespace::run as run_namespace;
pub use requirements::{check, check_visible};

/// Where the directory of clusters is inside.
pub const INSIDE: &str = "/run/knarr-clusters";
