//! Schemas of custom resources.
//!
//! In: a version's `openAPIV3Schema`. Out: a [`CustomSchema`] that decodes, prunes, defaults and validates objects by it,
//! and the same kind of [`crate::schema::Schema`] that built-in kinds have, for ownership and apply. [`check_rules`] says
//! whether the rules in a schema make sense.

mod blocking;
mod coerce;
mod convert;
mod defaults;
mod embedded;
mod formats;
mod list_type;
mod numbers;
mod past;
mod pattern;
mod problem;
mod props;
mod prune;
mod resource;
mod rule_checks;
mod rules;
mod scale;
mod validate;
mod value_checks;

pub(crate) use formats::by_name as format_named;
pub(crate) use pattern::compile as compile_pattern;
pub use props::{Additional, Props, Rule};
pub use resource::CustomSchema;
pub use rule_checks::check_rules;
pub use scale::ScalePaths;
pub use value_checks::check_value;
