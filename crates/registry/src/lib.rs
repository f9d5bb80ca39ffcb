//! A small registry of container images: the OCI distribution API over a directory.
//!
//! In: a directory and listeners. Out: images that clients push and container runtimes pull. There are no users: whoever
//! reaches a listener may pull, and push unless the listener is read-only. What is pushed is verified by its digest; names
//! become paths only after they matched the specification's grammar.

mod error;
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod reference;
mod server;
mod store;

pub use server::serve;
pub use store::Store;

/// What clients of a listener may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Pull,
    PullAndPush,
}
