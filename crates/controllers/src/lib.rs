//! Knarr's controllers: reconciliation loops between desired and observed state.
//!
//! The input is a [`Context`]: an API client, shared informers and settings. The output is writes to the API, and nothing else;
//! any controller can be disabled and run elsewhere, Kubernetes' own included. [`run`] starts those that the settings enable.
//!
//! Each controller is a directory or a file: `plan` (and files beside it) holds pure functions from desired and observed
//! state to actions and status; `mod.rs` wires informers to a work queue and carries plans out. Add a controller by adding
//! its module and its row in [`registry`].

mod clock;
pub mod common;
mod concurrency;
mod context;
pub mod error;
mod registry;
mod settings;

pub mod attach_detach;
pub mod autoscaler;
pub mod bootstrap_signer;
pub mod certificates;
pub mod cluster_role_aggregation;
pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
pub mod device_taint_eviction;
pub mod disruption_budget;
pub mod endpoint_slice;
pub mod endpoints;
pub mod ephemeral_volume;
pub mod garbage_collector;
pub mod job;
mod metrics;
pub mod namespace;
pub mod node_ipam;
pub mod node_lifecycle;
pub mod node_ttl;
pub mod pod_gc;
pub mod replica_set;
pub mod resource_claim;
pub mod resource_quota;
pub mod root_ca;
pub mod service_account;
pub mod service_account_token;
pub mod service_cidr;
pub mod stateful_set;
pub mod taint_eviction;
pub mod token_cleaner;
pub mod ttl_after_finished;
pub mod volume_binder;
pub mod volume_expander;
pub mod volume_protection;

pub use clock::Clock;
pub use concurrency::{ConcurrentSyncs, SYNC_SETTINGS};
pub use context::{AccountClients, Context};
pub use error::Error;
pub use registry::{CONTROLLERS, run};
pub use settings::{Settings, SigningAuthority};
