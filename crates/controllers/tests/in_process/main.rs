//! Controllers against an API server in the same process, on time that only passes when a test says so. One file per family
//! of controllers; `support` builds the cluster.

mod support;

mod accounts;
mod autoscaler;
mod bootstrap_tokens;
mod cluster_roles;
mod cron_job;
mod daemon_set;
mod deployment;
mod disks;
mod disruption;
mod endpoints;
mod garbage_collector;
mod job;
mod namespace;
mod node_networks;
mod nodes;
mod quota;
mod replica_set;
mod resource_claim;
mod stateful_set;
mod volumes;
