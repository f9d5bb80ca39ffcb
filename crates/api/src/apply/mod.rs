//! Field ownership: tracking on every write, and server-side apply.
//!
//! In: the live object, the new object or a configuration, and the field manager. Out: the object with its managedFields,
//! or the conflicts. [`Tracker::update`] is for create, update and the other patches; [`Tracker::apply`] for apply.
//! Both run after defaulting and before admission, so that fields which the server adds later have no owner.

mod compare;
mod conflict;
mod created;
mod element;
mod field_set;
mod fields_v1;
mod last_applied;
mod managers;
mod merge;
mod overlay;
mod reconcile;
mod remove;
mod set;
mod times;
mod tracker;
mod typing;
mod updater;
mod user_agent;
mod validate;

pub use conflict::{Conflict, conflict_message};
pub use element::PathElement;
pub(crate) use element::equal_values as same_value;
pub use managers::{ManagerId, Managers, Operation, OwnedFields};
pub use overlay::overlay;
pub use set::Set;
pub use times::keep_times_if_unchanged;
pub use tracker::{ApplyError, SingleVersion, Tracker, VersionConverter};
pub use user_agent::manager_name;

/// Decodes a set of fields from FieldsV1.
pub fn decode_fields(value: &serde_json::Value) -> Result<Set, String> {
    fields_v1::decode(value)
}

/// Encodes a set of fields as FieldsV1.
pub fn encode_fields(set: &Set) -> serde_json::Value {
    fields_v1::encode(set)
}
