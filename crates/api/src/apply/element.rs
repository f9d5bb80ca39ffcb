//! One step of a field path: a field, an element of a list by its key or value, or an index.

use crate::decode::{self, quoted};
use serde_json::Value;
use std::cmp::Ordering;
use std::fmt::{self, Display, Write};

/// One step of a field path.
#[derive(Clone, Debug)]
pub enum PathElement {
    Field(Box<str>),
    /// The key fields of a list's element, sorted by name.
    Key(Vec<(Box<str>, Value)>),
    /// The element of a set itself.
    Value(Value),
    Index(i64),
}

/// Why a text is not a path element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoElement {
    /// Of a kind that a newer version wrote; to be skipped.
    Unknown,
    Malformed(String),
}

impl PathElement {
    /// The step to the field of that name.
    pub fn field(name: &str) -> Self {
        PathElement::Field(name.into())
    }

    /// The element as a key of FieldsV1: `f:name`, `k:{"name":"x"}`, `v:1`, `i:0`.
    pub fn encode(&self) -> String {
        match self {
            PathElement::Field(name) => {
                let mut text = String::with_capacity(name.len() + 2);
                text.push_str("f:");
                text.push_str(name);
                text
            }
            PathElement::Key(fields) => {
                let mut text = String::from("k:{");
                for (at, (name, value)) in fields.iter().enumerate() {
                    let name = Value::from(&**name);
                    let _ = write!(text, "{}{name}:{value}", if at > 0 { "," } else { "" });
                }
                text.push('}');
                text
            }
            PathElement::Value(value) => format!("v:{value}"),
            PathElement::Index(at) => format!("i:{at}"),
        }
    }

    pub(super) fn decode(text: &str) -> Result<Self, NoElement> {
        let malformed = |what: &str| NoElement::Malformed(format!("{what}: {text}"));
        let (kind, rest) = text.split_once(':').ok_or_else(|| malformed("missing colon"))?;
        let json = || decode::untyped_json(rest.as_bytes()).map_err(|error| NoElement::Malformed(error.to_string()));
        match kind {
            "f" => Ok(PathElement::field(rest)),
            "v" => Ok(PathElement::Value(json()?.value)),
            "k" => match json()?.value {
                Value::Object(fields) => {
                    let mut fields: Vec<_> =
                        fields.into_iter().map(|(name, value)| (name.into_boxed_str(), value)).collect();
                    fields.sort_by(|a, b| a.0.cmp(&b.0));
                    Ok(PathElement::Key(fields))
                }
                _ => Err(malformed("a key must be an object")),
            },
            "i" => rest.parse().map(PathElement::Index).map_err(|_| malformed("an index must be a number")),
            _ if kind.len() == 1 => Err(NoElement::Unknown),
            _ => Err(malformed("missing colon")),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (PathElement::Field(a), PathElement::Field(b)) => a.cmp(b),
            (PathElement::Key(a), PathElement::Key(b)) => compare_keys(a, b),
            (PathElement::Value(a), PathElement::Value(b)) => compare_values(a, b),
            (PathElement::Index(a), PathElement::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

fn compare_keys(a: &[(Box<str>, Value)], b: &[(Box<str>, Value)]) -> Ordering {
    for ((a_name, a_value), (b_name, b_value)) in a.iter().zip(b) {
        let order = a_name.cmp(b_name).then_with(|| compare_values(a_value, b_value));
        if order != Ordering::Equal {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// A total order over values of any type: numbers, texts, flags, lists, maps, null.
pub(super) fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            let different = x.iter().zip(y).map(|(x, y)| compare_values(x, y)).find(|order| order.is_ne());
            different.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => {
            let mut pairs = x.iter().zip(y).map(|((a, x), (b, y))| a.cmp(b).then_with(|| compare_values(x, y)));
            pairs.find(|order| order.is_ne()).unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Equality for ownership: integers and floating-point numbers compare by value.
pub(crate) fn equal_values(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(_), Value::Number(_)) => compare_values(a, b).is_eq(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal_values(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(name, x)| y.get(name).is_some_and(|y| equal_values(x, y)))
        }
        _ => a == b,
    }
}

/// The form in messages: `.spec`, `[name="x"]`, `[="v"]`, `[0]`.
impl Display for PathElement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(out, ".{name}"),
            PathElement::Key(fields) => {
                out.write_str("[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    write!(out, "{}{name}={}", if at > 0 { "," } else { "" }, format_value(value))?;
                }
                out.write_str("]")
            }
            PathElement::Value(value) => write!(out, "[={}]", format_value(value)),
            PathElement::Index(at) => write!(out, "[{at}]"),
        }
    }
}

fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(format_value).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => fields.iter().map(|(name, value)| format!("{name}={}", format_value(value))).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn elements_are_written_read_and_shown() {
        for (text, shown) in [
            ("f:spec", ".spec"),
            ("f:a:b", ".a:b"),
            (r#"k:{"containerPort":80,"protocol":"TCP"}"#, r#"[containerPort=80,protocol="TCP"]"#),
            (r#"v:"x""#, r#"[="x"]"#),
            ("v:1", "[=1]"),
            ("i:3", "[3]"),
        ] {
            let element = PathElement::decode(text).expect("element");
            assert_eq!((element.encode().as_str(), element.to_string().as_str()), (text, shown));
        }
        assert_eq!(PathElement::decode("z:1"), Err(NoElement::Unknown));
        assert!(matches!(PathElement::decode("k:{"), Err(NoElement::Malformed(_))));
        assert!(matches!(PathElement::decode("f"), Err(NoElement::Malformed(_))));
    }

    #[test]
    fn elements_have_an_order() {
        let mut elements = [
            PathElement::Index(0),
            PathElement::Value(json!("a")),
            PathElement::Value(json!(2)),
            PathElement::Key(vec![("name".into(), json!("b"))]),
            PathElement::Key(vec![("name".into(), json!("a"))]),
            PathElement::field("z"),
        ];
        elements.sort();
        let shown: Vec<String> = elements.iter().map(ToString::to_string).collect();
        assert_eq!(shown, [".z", r#"[name="a"]"#, r#"[name="b"]"#, "[=2]", r#"[="a"]"#, "[0]"]);
        assert!(equal_values(&json!({"a": [1.0]}), &json!({"a": [1]})));
    }
}
