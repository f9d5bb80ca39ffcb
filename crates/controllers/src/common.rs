//! What several controllers need.

pub mod adoption;
pub mod discovery;
pub mod disruption;
pub mod expectations;
pub mod hash;
pub mod history;
pub mod int_or_percent;
pub mod key;
pub mod network;
pub mod pod_resources;
pub mod pods;
pub mod port_order;
pub mod requests;
pub mod service_pods;
pub mod trail;
pub mod wording;
pub mod written;

pub use expectations::Expectations;
pub use key::Key;
