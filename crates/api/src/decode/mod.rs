//! Decoding of request bodies into objects, by schema.
//!
//! In: a body and the schema node of the expected kind. Out: the object without unknown fields, with quantities and
//! times in canonical form, and the problems that strict field validation reports. Error messages are those of
//! Kubernetes.

mod emptied;
mod error;
mod kind;
mod normalize;
mod path;
mod scanner;
mod time;
mod typed;
mod untyped;
mod yaml;

pub use emptied::Emptied;
pub use error::{DecodeError, StrictProblem};
pub use kind::{TypeMeta, type_meta};
pub use normalize::{normalize, normalize_as_given, zero};
pub(crate) use path::quoted;
pub use scanner::{MAX_RAW_DEPTH, MAX_VALUE_DEPTH};
pub use time::seconds as time_in_seconds;

use crate::schema::NodeRef;
use serde_json::Value;

/// A decoded body.
#[derive(Debug)]
pub struct Decoded {
    /// The object.
    pub value: Value,
    /// In document order. The caller refuses the object, warns, or ignores them.
    pub problems: Vec<StrictProblem>,
    /// Empty lists and maps that count as absent.
    pub emptied: Vec<Emptied>,
}

/// Decodes JSON into an object of the kind that `node` describes.
pub fn json(bytes: &[u8], node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    typed::decode(bytes, node)
}

/// Decodes YAML the same way; duplicate keys are problems of their own.
pub fn yaml(bytes: &[u8], node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    let (value, duplicates) = yaml::read(bytes)?;
    let mut decoded = reread(&value, node)?;
    decoded.problems.splice(0..0, duplicates);
    Ok(decoded)
}

/// Decodes an object in memory, such as the result of a patch.
pub fn value(value: &Value, node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    reread(value, node)
}

/// Decodes JSON without a schema; only duplicate fields are problems.
pub fn untyped_json(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    untyped::decode(bytes)
}

/// Decodes YAML without a schema; only duplicate keys are problems.
pub fn untyped_yaml(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let (value, problems) = yaml::read(bytes)?;
    Ok(Decoded { value, problems: problems.into_iter().collect(), emptied: Vec::new() })
}

fn reread(value: &Value, node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    typed::decode(value.to_string().as_bytes(), node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin;
    use proptest::prelude::*;

    /// JSON of any shape, with some field names of schemas.
    fn any_json() -> impl Strategy<Value = Value> {
        let name = prop_oneof![
            "[a-z]{1,3}",
            Just("metadata".to_owned()),
            Just("spec".to_owned()),
            Just("labels".to_owned()),
            Just("containers".to_owned()),
            Just("name".to_owned()),
            Just("replicas".to_owned())
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9f64).prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 8, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((name.clone(), inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn deployment() -> NodeRef<'static> {
        builtin().kind("apps", "v1", "Deployment").expect("deployment")
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_decoders(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = json(&bytes, deployment());
            let _ = yaml(&bytes, deployment());
            let _ = untyped_json(&bytes);
            let _ = type_meta(&bytes);
        }

        #[test]
        fn no_text_breaks_the_decoders(text in "[\\[\\]{}:,\"'a-z0-9 \n&*|>#.-]{0,80}") {
            let _ = json(text.as_bytes(), deployment());
            let _ = yaml(text.as_bytes(), deployment());
        }

        #[test]
        fn untyped_json_is_read_as_it_was_written(written in any_json()) {
            let read = untyped_json(written.to_string().as_bytes()).expect("JSON").value;
            prop_assert!(crate::apply::same_value(&read, &written), "{written} was read as {read}");
        }

        #[test]
        fn what_was_decoded_decodes_to_itself(written in any_json()) {
            if let Ok(mut first) = value(&written, deployment()) {
                normalize(&mut first.value, deployment());
                let mut second = value(&first.value, deployment()).expect("decoded before");
                prop_assert!(second.problems.is_empty());
                normalize(&mut second.value, deployment());
                prop_assert_eq!(second.value, first.value);
            }
        }

        #[test]
        fn yaml_reads_json(written in any_json()) {
            let text = written.to_string();
            // YAML does not allow control characters.
            prop_assume!(!text.chars().any(|c| c.is_control() || !(' '..='\u{d7ff}').contains(&c)));
            let read = untyped_yaml(text.as_bytes()).expect("YAML").value;
            prop_assert!(crate::apply::same_value(&read, &written), "{written} was read as {read}");
        }
    }
}
