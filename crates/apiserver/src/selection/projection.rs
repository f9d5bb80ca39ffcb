//! Parses only some fields of an object and skips the bytes of the rest.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Which fields of a value are parsed.
pub enum Projection {
    All,
    /// These fields of an object, or of each object in a list.
    Fields(&'static [(&'static str, Projection)]),
}

impl Projection {
    /// Parses the selected fields of JSON.
    pub fn read(&self, bytes: &[u8]) -> Result<Value, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let value = self.deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for &Projection {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Projection::All => serde::Deserialize::deserialize(deserializer),
            Projection::Fields(fields) => deserializer.deserialize_any(Fields(fields)),
        }
    }
}

#[derive(Clone, Copy)]
struct Fields(&'static [(&'static str, Projection)]);

impl<'de> Visitor<'de> for Fields {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object, a list of objects or nothing")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some(field) = map.next_key_seed(FieldName(self.0))? {
            match field {
                Some((name, projection)) => drop(read.insert((*name).to_owned(), map.next_value_seed(projection)?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(read))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        let projection = Projection::Fields(self.0);
        while let Some(element) = list.next_element_seed(&projection)? {
            read.push(element);
        }
        Ok(Value::Array(read))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Finds a field by its name without allocating the name.
struct FieldName(&'static [(&'static str, Projection)]);

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Option<&'static (&'static str, Projection)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = Option<&'static (&'static str, Projection)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(own, _)| *own == name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PROJECTION: Projection =
        Projection::Fields(&[("a", Projection::All), ("b", Projection::Fields(&[("c", Projection::All)]))]);

    #[test]
    fn only_the_selected_fields_are_parsed() {
        for (object, read) in [
            (json!({}), json!({})),
            (json!({"a": {"x": [1]}, "z": {"a": 1}}), json!({"a": {"x": [1]}})),
            (json!({"b": {"c": 1, "d": 2}}), json!({"b": {"c": 1}})),
            (json!({"b": [{"c": 1}, {"d": 2}, null]}), json!({"b": [{"c": 1}, {}, null]})),
            (json!({"b": null, "\"a": 1}), json!({"b": null})),
        ] {
            assert_eq!(PROJECTION.read(object.to_string().as_bytes()).unwrap(), read);
        }
        for wrong in ["", "{", "{}x", "{\"b\":1}", "{\"z\":}"] {
            assert!(PROJECTION.read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
