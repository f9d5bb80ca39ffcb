//! Helpers shared by several controllers.

pub mod adoption;
pub mod discovery;
pub mod disruption;
pub mod expectations;
pub mod hash;
pub mod history;
pub mod int_or_percent;
pub mod journey;
pub mod key;
pub mod messages;
pub mod pods;
pub mod port_order;
pub mod reconcile;
pub mod requests;
pub mod service_pods;
pub mod written_versions;

pub use expectations::Expectations;
pub use key::Key;
