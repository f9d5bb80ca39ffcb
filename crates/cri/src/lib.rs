//! A client of the Container Runtime Interface (CRI), and the containerd that a node starts for itself.
//!
//! In: the unix socket of any runtime that serves CRI v1; without one, [`containerd`] starts a containerd with its own
//! configuration, state and socket.
//! Out: [`Runtime`], a client with one method per CRI call; [`events`], a stream of container changes; and
//! [`containerd::import`], which imports image archives on nodes without a registry.

pub mod containerd;
pub mod events;
pub mod messages;

mod client;
mod error;
mod exec_output;
mod privileges;

pub use client::{Observer, Runtime};
pub use error::CallError;
pub use privileges::{Privileges, in_user_namespace};

/// The containerd namespace of everything created through CRI.
pub(crate) const CONTAINERD_NAMESPACE: &str = "k8s.io";
