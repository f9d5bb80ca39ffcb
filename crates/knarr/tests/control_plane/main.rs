//! Journeys through a control plane whose API server, controllers and scheduler are processes of their own, with hollow nodes
//! where pods must run. One file a theme; `support` makes what they need.

#[path = "../../../object-storage/src/fake_storage.rs"]
mod fake_storage;
mod support;

mod by_name;
mod certificates;
mod charts;
mod crashes;
mod deployment;
mod discovery;
mod identities;
mod leadership;
mod metrics;
mod page;
mod snapshots;
mod storage;
