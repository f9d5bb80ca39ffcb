//! The revisioned key-value store under the API server.
//!
//! In: writes that name the revision they replace. Out: durable acknowledgements, consistent reads at a revision, and
//! watches that miss nothing. The contract is in `contract`; all backends serve reads and watches from memory.

mod contract;

pub use contract::{Entry, Error, Event, Notice, Page, Range, Revision, Store, Watch};
