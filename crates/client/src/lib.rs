//! The Kubernetes API client library of Knarr's components.
//!
//! In: a [`kube::Client`], either over TLS ([`connect()`]) or over an in-process service from the binary. Out:
//! - [`AccountClients`]: clients as service accounts, over shared connections;
//! - [`Informers`]: one list-and-watch per kind and selector for the whole process, with a local store, indexes and
//!   inline change handlers;
//! - [`WorkQueue`] and [`run_workers`]: deduplicated, delayed and rate-limited keys, one worker per key at a time;
//! - [`delegated_access`]: who may use a component's endpoints, as the API server decides;
//! - [`LeaderElection`]: leadership by a Lease, whose loser stops before another candidate can acquire it;
//! - [`EventRecorder`] (core/v1) and [`SeriesRecorder`] (events.k8s.io/v1): events that aggregate;
//! - [`ServerReachability`]: one log line when the API server becomes unreachable, one when it is back;
//! - small helpers on the typed API: [`decode`], [`owner`], [`selector`], [`quantity`], [`node`], [`node_fit`], [`pod`],
//!   [`pod_resources`], [`time`]. What values of the API mean is in [`semantics`].
//!
//! Start reading at [`informers::Informers`].

pub use {k8s_openapi, kube};

mod account_clients;
pub mod api_error;
pub mod connect;
pub mod csi_migration;
pub mod decode;
pub mod delegated_access;
pub mod disk_name;
mod error_chain;
pub mod events;
pub mod informer;
pub mod informers;
pub mod leader;
pub mod node;
pub mod node_fit;
pub mod node_identity;
pub mod owner;
mod path_name;
pub mod pod;
pub mod pod_resources;
pub mod quantity;
pub mod reachability;
mod request_metrics;
pub mod selector;
pub mod time;
pub mod work_queue;
pub mod work_queue_metrics;

pub use account_clients::AccountClients;
pub use connect::{ConnectError, connect, connect_at, connect_with, read_config, read_config_at};
pub use events::{EventRecorder, SeriesRecorder};
pub use informer::{Change, Informer, Metadata};
pub use informers::Informers;
pub use knarr_go_duration as go_duration;
pub use knarr_semantics as semantics;
pub use leader::{Fence, LeaderElection, LeaderError};
pub use path_name::path_name;
pub use reachability::{ServerReachability, is_unreachable};
pub use request_metrics::{FAMILIES as REQUEST_METRICS, in_process_client, measured_client};
pub use work_queue::{WorkQueue, run_workers};
