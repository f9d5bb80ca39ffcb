//! Schemas of custom resources.
//!
//! In: a version's `openAPIV3Schema`. Out: a [`CustomSchema`] that decodes, prunes, defaults and validates objects by it,
//! and the same kind of [`crate::schema::Schema`] that built-in kinds have, for ownership and apply. [`check`] says
//! whether a schema is structural in the first place.

mod blocking;
mod coerce;
mod convert;
mod defaults;
mod embedded;
mod formats;
mod list_type;
mod pattern;
mod props;
mod prune;
mod resource;
mod scale;
mod structural;
mod validate;

pub use props::{Props, Rule};
pub use resource::CustomSchema;
pub use scale::ScalePaths;
pub use structural::{check, unsupported};
