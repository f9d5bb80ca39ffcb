//! CEL types for expressions in built-in kinds: admission policies, webhook match conditions.

use std::sync::Arc;

use knarr_api::cel::{ObjectType, Type};

/// Returns an object type with the given fields.
pub fn object(name: &str, fields: Vec<(&str, Type)>) -> Type {
    let fields = fields.into_iter().map(|(field, kind)| (field.to_owned(), kind)).collect();
    Type::Object(Arc::new(ObjectType { name: name.to_owned(), fields }))
}
