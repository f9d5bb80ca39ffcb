//! Tests of whole clusters: server, agents, containerd, pods, network. They need root and the requirements of a node, and
//! are skipped otherwise. One file per topic; `harness` creates the clusters.

mod harness;

mod claims;
mod database;
mod documentation;
mod joining;
mod local_cluster;
mod log_rotation;
mod metrics;
mod network;
mod page;
mod pod_network;
mod pulling;
mod removal;
mod resources;
mod rootless;
mod settings;
mod supervision;
mod timeline;
mod workloads;
