//! The revisioned key-value store under the API server.
//!
//! In: writes that name the revision they replace. Out: durable acknowledgements, consistent reads at a revision, and
//! watches that miss nothing. The contract is in `contract`; all backends serve reads and watches from the same
//! in-memory `index`. What differs is who makes a write durable: `embedded` has its own log on the local disk, `etcd` asks a
//! cluster of etcd servers and follows what they say.

// The tests' fixtures name the crate as its users do.
#[cfg(test)]
extern crate self as knarr_store;

mod clock;
mod contract;
mod embedded;
mod etcd;
mod index;
mod retention;

pub use clock::{Clock, SystemClock};
pub use contract::{Entry, Error, Event, Notice, Page, Range, Revision, Store, Watch};
#[doc(hidden)]
pub use embedded::fuzzing;
pub use embedded::{Embedded, Options, export, restore};
pub use etcd::{Etcd, EtcdOptions, Tls};
pub use retention::Retention;
