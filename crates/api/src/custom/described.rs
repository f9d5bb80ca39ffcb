//! What validation rules are about: a schema, and the type of its values in expressions.

use std::cell::OnceCell;

use crate::cel::{Type, smallest};
use crate::json_schema::{JsonSchemaProps, ValidationRule};

/// A schema that rules are about.
pub(super) struct Described<'p> {
    pub props: &'p JsonSchemaProps,
    is_resource: bool,
    /// The type of its values, which is as large as the schema and the same for all rules.
    kind: OnceCell<Type>,
    smallest: OnceCell<u64>,
}

impl<'p> Described<'p> {
    /// A schema, and whether its values are whole objects.
    pub fn new(props: &'p JsonSchemaProps, is_resource: bool) -> Self {
        Described { props, is_resource, kind: OnceCell::new(), smallest: OnceCell::new() }
    }

    /// The variables that a rule may use.
    pub fn variables(&self, rule: &ValidationRule) -> Vec<(String, Type)> {
        let own = self.kind.get_or_init(|| Type::of_props(self.props, self.is_resource).unwrap_or(Type::Dyn)).clone();
        let old = match rule.optional_old_self {
            Some(true) => Type::Optional(own.clone().into()),
            _ => own.clone(),
        };
        vec![("self".to_owned(), own), ("oldSelf".to_owned(), old)]
    }

    /// The minimum number of bytes of a value in a request.
    pub fn smallest(&self) -> u64 {
        *self.smallest.get_or_init(|| smallest(self.props))
    }
}
