//! Reading a few fields of an object: the rest of its bytes is passed over and becomes nothing.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// What is read of a value.
pub enum Pick {
    All,
    /// Of an object, or of each one in a list, these fields.
    Fields(&'static [(&'static str, Pick)]),
}

impl Pick {
    pub fn read(&self, bytes: &[u8]) -> Result<Value, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let value = self.deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for &Pick {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Pick::All => serde::Deserialize::deserialize(deserializer),
            Pick::Fields(fields) => deserializer.deserialize_any(Picked(fields)),
        }
    }
}

#[derive(Clone, Copy)]
struct Picked(&'static [(&'static str, Pick)]);

impl<'de> Visitor<'de> for Picked {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object, a list of objects or nothing")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some(field) = map.next_key_seed(Name(self.0))? {
            match field {
                Some((name, pick)) => drop(read.insert((*name).to_owned(), map.next_value_seed(pick)?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(read))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        let pick = Pick::Fields(self.0);
        while let Some(element) = list.next_element_seed(&pick)? {
            read.push(element);
        }
        Ok(Value::Array(read))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Finds a field by its name without keeping it.
struct Name(&'static [(&'static str, Pick)]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<&'static (&'static str, Pick)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<&'static (&'static str, Pick)>;

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

    const PICK: Pick = Pick::Fields(&[("a", Pick::All), ("b", Pick::Fields(&[("c", Pick::All)]))]);

    #[test]
    fn only_what_is_asked_for_is_read() {
        for (object, read) in [
            (json!({}), json!({})),
            (json!({"a": {"x": [1]}, "z": {"a": 1}}), json!({"a": {"x": [1]}})),
            (json!({"b": {"c": 1, "d": 2}}), json!({"b": {"c": 1}})),
            (json!({"b": [{"c": 1}, {"d": 2}, null]}), json!({"b": [{"c": 1}, {}, null]})),
            (json!({"b": null, "\"a": 1}), json!({"b": null})),
        ] {
            assert_eq!(PICK.read(object.to_string().as_bytes()).unwrap(), read);
        }
        for wrong in ["", "{", "{}x", "{\"b\":1}", "{\"z\":}"] {
            assert!(PICK.read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
