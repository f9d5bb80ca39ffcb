//! The revisioned key-value store under the API server.
//!
//! In: writes that name the revision they replace. Out: durable acknowledgements, consistent reads at a revision, and
//! watches that miss no change. [`Store`] is the contract; every backend serves reads and watches from the same in-memory
//! `index`. The backends differ in how a write becomes durable: [`Embedded`] appends it to a log on the local disk,
//! [`Etcd`] runs a transaction on a cluster of etcd servers and watches them for changes.

// Test fixtures refer to this crate by name, as its users do.
#[cfg(test)]
extern crate self as knarr_store;

mod clock;
mod contract;
mod embedded;
mod entry;
mod etcd;
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod retention;

pub use clock::{Clock, SystemClock};
pub use contract::{
    ChangeObserver, Entry, Error, Event, Notice, Page, Range, Revision, Scope, Store, StoreStatus, TopicIndex, Watch,
};
pub use embedded::{CheckReport, Embedded, Options, UnsyncedDisk, check, compact, export, repair, restore};
pub use etcd::{
    Connection, Decode, Dialer, Etcd, EtcdAdministration, EtcdMember, EtcdOptions, MemberStatus, SkippedRevisions, Tls,
    import as import_into_etcd, revision_of as etcd_revision,
};
pub use retention::Retention;
