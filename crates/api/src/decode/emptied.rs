//! Empty lists and maps in a body.
//!
//! They count as absent and are removed, but messages about the object print them.

use serde_json::{Map, Value};

use super::path::Step;
use crate::schema::{Field, NodeRef, Presence, Shape};

/// An empty list or map and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    at: Vec<At>,
    is_list: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Name(Box<str>),
    Index(usize),
}

impl Emptied {
    /// Whether a field's value is an empty list or map that messages could print.
    pub(super) fn matters(owner: NodeRef<'_>, field: &Field, value: &Value) -> bool {
        let empty = match (&owner.at(field.node).get().shape, value) {
            (Shape::List(_), Value::Array(items)) => items.is_empty(),
            (Shape::Map(_), Value::Object(entries)) => entries.is_empty(),
            _ => false,
        };
        // Messages print selectors in the form of the API, which omits empty fields.
        empty
            && matches!(field.presence, Presence::NonZero | Presence::Always)
            && &*field.name != "managedFields"
            && !owner.get().struct_name().starts_with("LabelSelector")
    }

    /// The empty value at a path.
    pub(super) fn new(steps: &[Step<'_>], value: &Value) -> Emptied {
        let at = steps.iter().map(|step| match step {
            Step::Field { name, .. } => At::Name((*name).into()),
            Step::Key(name) => At::Name((&**name).into()),
            Step::Index(index) => At::Index(*index),
        });
        Emptied { at: at.collect(), is_list: value.is_array() }
    }

    /// Restores the empty value if its parent exists and the field is not set.
    pub fn put_back(&self, object: &mut Value) {
        let Some((At::Name(last), before)) = self.at.split_last() else { return };
        let mut holder = object;
        for step in before {
            let next = match step {
                At::Name(name) => holder.get_mut(&**name),
                At::Index(index) => holder.get_mut(*index),
            };
            let Some(next) = next else { return };
            holder = next;
        }
        if let Value::Object(fields) = holder {
            let empty = if self.is_list { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
            let value = fields.entry(&**last).or_insert(Value::Null);
            if value.is_null() {
                *value = empty;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::decode;
    use crate::schema::builtin;
    use serde_json::json;

    #[test]
    fn what_was_empty_is_put_back() {
        let node = builtin().kind("apps", "v1", "Deployment").expect("kind");
        let given = json!({"spec": {"template": {"metadata": {"labels": {}}, "spec": {"containers": [{"env": []}]}}}});
        let decoded = decode::value(&given, node).unwrap();
        let mut value = decoded.value.clone();
        assert_eq!(value["spec"]["template"]["metadata"], json!({}));
        assert_eq!(decoded.emptied.len(), 2);
        decoded.emptied.iter().for_each(|emptied| emptied.put_back(&mut value));
        assert_eq!(value, given);
    }
}
