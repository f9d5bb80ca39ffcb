//! The Container Storage Interface (CSI v1): messages, a client, and a server for drivers.
//!
//! In: the unix socket of a driver, or of a plugin in the kubelet's `plugins_registry`.
//! Out: [`Client`] with one method per call of [`Identity`], [`Controller`], [`Node`] and [`Registration`]; the same traits
//! for drivers, served by [`Server`]. Every call has a deadline, and secrets are never printed ([`messages::Secret`]).

#[doc(hidden)]
pub mod fuzzing;
pub mod messages;

mod client;
mod connection;
mod error;
mod route;
mod server;
mod services;

pub use client::{Client, Observer, Stream, socket_path};
pub use connection::UnixConnection;
pub use error::CallError;
pub use server::{Server, listen};
pub use services::{Controller, Identity, Node, Registration};
pub use tonic::{Code, Status};

/// The kubelet API version of plugins that CSI drivers register with.
pub const REGISTRATION_VERSION: &str = "1.0.0";
