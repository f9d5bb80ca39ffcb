//! Journeys through whole clusters: server, agents, containerd, pods, network. They need root and what a node needs; on a
//! machine without it there is nothing to test. One file a theme; `harness` makes the clusters.

mod harness;

mod documentation;
mod joining;
mod log_rotation;
mod network;
mod pod_network;
mod pulling;
mod removal;
mod resources;
mod settings;
mod story;
mod workloads;
