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

    /// The memory that this takes.
    pub(super) fn size(&self) -> usize {
        let of = |at: &At| match at {
            At::Name(name) => name.len(),
            At::Index(_) => 0,
        };
        self.at.iter().map(|at| size_of::<At>() + of(at)).sum()
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

    /// Each path repeats the key that all of them are below.
    #[test]
    fn long_paths_are_not_repeated_without_end() {
        let node = builtin().kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").expect("kind");
        let many = [r#""required":[],"#.repeat(3_000), r#""unknown":1,"unknown":1,"#.repeat(1_000)].concat();
        let properties = format!(r#"{{"{}":{{{many}"type":"object"}}}}"#, "k".repeat(1 << 20));
        let unknown: String = (0..100).map(|at| format!(r#""{at}":1,"{at}":1,"#)).collect();
        let typed =
            format!(r#"{{"spec":{{"versions":[{{"schema":{{"openAPIV3Schema":{{"properties":{properties}}}}}}}]}}}}"#);
        let untyped = format!(r#"{{"{}":{{{unknown}"x":1}}}}"#, "k".repeat(1 << 20));
        let labels: String = (0..100).map(|at| format!(r#""{}{at}":"","{0}{at}":"","#, "k".repeat(10_000))).collect();
        let labels = format!(r#"{{"metadata":{{"labels":{{{labels}"x":""}}}}}}"#);
        let bytes = |found: &decode::Decoded| {
            let emptied: usize = found.emptied.iter().map(super::Emptied::size).sum();
            let problems: usize = found.problems.iter().map(|problem| problem.to_string().len()).sum();
            (emptied + problems, found.problems.len())
        };
        let (found, _) = bytes(&decode::json(typed.as_bytes(), node).unwrap());
        assert!((1 << 20..4 << 20).contains(&found), "{found}");
        let (found, problems) = bytes(&decode::untyped_json(untyped.as_bytes()).unwrap());
        assert!(problems == 1 && found < 2 << 20, "{found}");
        let (found, problems) = bytes(&decode::json(labels.as_bytes(), node).unwrap());
        assert!((2..20).contains(&problems) && found < 1 << 20, "{found}");
    }
}
