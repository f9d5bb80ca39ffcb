//! The previous states of the values that validation rules are about.

use super::correlated::{CorrelatedElements, CorrelatedValue, KeyedElements};
use crate::json_schema::JsonSchemaProps;
use serde_json::Value;

/// The previous state of a value: the one that rules see as `oldSelf`, and the ones that decide whether it changed.
#[derive(Clone, Copy)]
pub(super) struct History<'v> {
    pub old: Option<&'v Value>,
    pub current: Option<CorrelatedValue<'v>>,
    /// The nearest enclosing value that has a previous state.
    pub parent: Option<CorrelatedValue<'v>>,
}

impl<'v> History<'v> {
    /// That of a field.
    pub fn field(self, name: &str) -> History<'v> {
        let old = self.old.and_then(|old| old.get(name));
        match self.current {
            None => History { old, ..self },
            Some(_) if self.parent.is_none() && matches!(name, "apiVersion" | "kind") => {
                History { old, current: None, parent: None }
            }
            Some(current) => History { old, current: current.field(name), parent: Some(current) },
        }
    }

    /// Those of the elements of a list.
    pub fn elements(self, list: &JsonSchemaProps) -> ElementHistories<'v> {
        ElementHistories {
            list: self,
            old: self.old.and_then(|old| KeyedElements::new(old, list)),
            current: self.current.and_then(|current| current.elements()),
        }
    }

    /// Whether the value, or what encloses it, did not change.
    pub fn is_unchanged(self) -> bool {
        self.current.or(self.parent).is_some_and(|correlated| correlated.is_unchanged())
    }
}

/// The previous states of the elements of a list.
pub(super) struct ElementHistories<'v> {
    list: History<'v>,
    old: Option<KeyedElements<'v>>,
    current: Option<CorrelatedElements<'v>>,
}

impl<'v> ElementHistories<'v> {
    /// That of an element.
    pub fn at(&self, at: usize, item: &Value) -> History<'v> {
        let old = self.old.as_ref().and_then(|old| old.get(item));
        match self.list.current {
            None => History { old, ..self.list },
            Some(list) => {
                let current = self.current.as_ref().and_then(|elements| elements.at(at));
                History { old, current, parent: Some(list) }
            }
        }
    }
}
