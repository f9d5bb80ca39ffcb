//! How every component of Knarr talks to the Kubernetes API.
//!
//! In comes a [`kube::Client`], either over TLS ([`connect`]) or over an in-process service the binary hands in. Out go
//! - [`Informers`]: one list-and-watch per kind and selector for the whole process, with a local store, indexes and
//!   inline change handlers;
//! - [`WorkQueue`] and [`run_workers`]: deduplicated, delayed and rate-limited keys, one worker per key at a time;
//! - [`LeaderElection`]: leadership on a Lease, whose loser stops before the lease can be taken over;
//! - [`EventRecorder`] (core/v1) and [`SeriesRecorder`] (events.k8s.io/v1): events that aggregate;
//! - [`Reach`]: one line in the log when the API server goes, one when it is back;
//! - small helpers on the typed API: [`owner`], [`selector`], [`quantity`], [`pod`], [`time`].
//!
//! Start reading at [`informers::Informers`].

pub use {k8s_openapi, kube};

pub mod connect;
pub mod events;
pub mod informer;
pub mod informers;
pub mod leader;
pub mod node_fit;
pub mod node_network;
pub mod owner;
pub mod pod;
pub mod quantity;
pub mod reach;
pub mod selector;
pub mod time;
pub mod work_queue;

pub use connect::{ConnectError, Server, connect};
pub use events::{EventRecorder, SeriesRecorder};
pub use informer::{Change, Informer, Metadata};
pub use informers::Informers;
pub use leader::{LeaderElection, LeaderError};
pub use reach::{Reach, is_unreachable};
pub use work_queue::{WorkQueue, run_workers};
