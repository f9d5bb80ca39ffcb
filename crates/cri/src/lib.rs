//! The node's side of the Container Runtime Interface.
//!
//! In: a runtime that serves CRI v1 on a unix socket (any of them), or nothing, in which case [`containerd`] starts one
//! with a configuration, state and socket of its own.
//! Out: [`Runtime`], one method a CRI call; [`events`], a stream that tells which container changed; and
//! [`containerd::import`], which brings image archives into a runtime that has no registry to pull from.

pub mod containerd;
pub mod events;
pub mod messages;

mod client;

pub use client::{CallError, Observer, Runtime};
