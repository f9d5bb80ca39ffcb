//! The built-in FlowSchemas and PriorityLevelConfigurations. `background::flow_control` writes them to the store.

use crate::bootstrap::flow_revision::is_mandatory;
pub use crate::bootstrap::flow_revision::{CATCH_ALL, EXEMPT};
use crate::bootstrap::{self, DesiredObject};

/// The built-in objects.
pub fn all() -> Vec<DesiredObject> {
    bootstrap::flow_control()
}

/// The objects of a resource that classification needs.
pub fn mandatory(resource: &str) -> impl Iterator<Item = DesiredObject> {
    all().into_iter().filter(move |desired| desired.resource == resource && is_mandatory(desired.name()))
}
