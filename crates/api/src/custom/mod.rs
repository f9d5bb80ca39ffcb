//! Schemas of custom resources: decoding, pruning, defaulting and validation.
//!
//! In: a version's `openAPIV3Schema`. Out: a [`CustomSchema`] that decodes, prunes, defaults and validates objects by it,
//! and the same [`crate::schema::Schema`] that built-in kinds have, for field ownership and apply. [`check_rules`]
//! checks that the validation rules in a schema compile.

mod check_value;
mod coerce;
mod convert;
mod correlated;
mod defaults;
mod described;
mod embedded;
mod history;
mod list_type;
mod numbers;
mod place;
mod prune;
mod resource;
mod rule_checks;
mod rules;
mod scale;
mod unchecked_rules;
mod validate;
mod violation;

pub use check_value::check_value;
pub use resource::CustomSchema;
pub use rule_checks::check_rules;
pub use scale::ScalePaths;
