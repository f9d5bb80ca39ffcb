//! Lists and maps that were given without anything in them.
//!
//! They count as absent and are not kept, but messages about an object show them as they were given.

use serde_json::{Map, Value};

use super::path::Step;
use crate::schema::{Field, NodeRef, Presence, Shape};

/// Where an empty list or map was given.
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
    /// Whether a field's value is a list or map without anything in it, where messages could show that.
    pub(super) fn matters(owner: NodeRef<'_>, field: &Field, value: &Value) -> bool {
        let empty = match (&owner.at(field.node).get().shape, value) {
            (Shape::List(_), Value::Array(items)) => items.is_empty(),
            (Shape::Map(_), Value::Object(entries)) => entries.is_empty(),
            _ => false,
        };
        // Selectors are shown in the form of the API, which leaves empty fields out.
        empty
            && matches!(field.presence, Presence::NonZero | Presence::Always)
            && &*field.name != "managedFields"
            && !owner.get().struct_name().starts_with("LabelSelector")
    }

    /// The empty value at a path, whose last step is the field that holds it.
    pub(super) fn new(steps: &[Step<'_>], value: &Value) -> Emptied {
        let at = steps.iter().map(|step| match step {
            Step::Field { name, .. } => At::Name((*name).into()),
            Step::Key(name) => At::Name((&**name).into()),
            Step::Index(index) => At::Index(*index),
        });
        Emptied { at: at.collect(), is_list: value.is_array() }
    }

    /// Puts the empty value back where its place is still there and free.
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
