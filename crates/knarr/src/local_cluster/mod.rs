//! Clusters of several nodes on this host, each node in a network namespace: `knarr cluster`.
//!
//! A cluster is a directory with its [`Spec`] and the data directories of its nodes. Its names on the host (namespaces,
//! bridge, interfaces, firewall table, cgroups) follow from its own name and an identifier, so that starting, stopping and deleting need no
//! other record, and clusters never collide with each other or with a Knarr that runs on the host itself.

mod directory;
mod kubeconfig;
mod lifecycle;
mod network;
mod network_choice;
mod node;
mod nodes;
mod ports;
mod readiness;
mod rootless;
mod spec;

pub use kubeconfig::context_of;
pub use lifecycle::{Clusters, Listed, Settings};
pub use ports::relay;
pub use rootless::{Task, run_init, run_namespace};
pub use spec::{PortMapping, Spec, validate_name};

/// Reports what a long command does.
pub type Progress<'a> = &'a dyn Fn(&str);
