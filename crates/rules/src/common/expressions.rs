//! Expressions in the fields of built-in kinds: admission policies, webhook conditions, device selectors.

use std::sync::Arc;

use knarr_api::cel::{ObjectType, Type};

/// A type with fields of its own.
pub fn object(name: &str, fields: Vec<(&str, Type)>) -> Type {
    let fields = fields.into_iter().map(|(field, kind)| (field.to_owned(), kind)).collect();
    Type::Object(Arc::new(ObjectType { name: name.to_owned(), fields }))
}
