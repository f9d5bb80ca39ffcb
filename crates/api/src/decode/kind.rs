//! The type of a body: `apiVersion` and `kind`.

use super::error::DecodeError;
use super::scanner::{Scanner, ValueStart};

/// The two fields that name the type of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeMeta {
    /// `apiVersion`, or empty.
    pub api_version: String,
    /// `kind`, or empty.
    pub kind: String,
}

/// Finds `apiVersion` and `kind`, and checks the syntax of the whole body.
pub fn type_meta(bytes: &[u8]) -> Result<TypeMeta, DecodeError> {
    let mut scanner = Scanner::new(bytes);
    let mut found = TypeMeta::default();
    let mut mistyped = None;
    match scanner.start_value()? {
        ValueStart::Object => {
            let mut key = scanner.first_key()?;
            while let Some(name) = key {
                let (target, name) = match &*name {
                    name if name.eq_ignore_ascii_case("apiVersion") => (Some(&mut found.api_version), "apiVersion"),
                    name if name.eq_ignore_ascii_case("kind") => (Some(&mut found.kind), "kind"),
                    _ => (None, ""),
                };
                match (target, scanner.start_value()?) {
                    (None, _) | (_, ValueStart::Null) => scanner.skip_value()?,
                    (Some(target), ValueStart::String) => *target = scanner.string()?.into_owned(),
                    (Some(_), start_kind) => {
                        scanner.skip_value()?;
                        mistyped.get_or_insert(format!(
                            "json: cannot unmarshal {} into Go struct field .{name} of type string",
                            start_kind.go_name()
                        ));
                    }
                }
                key = scanner.next_key()?;
            }
        }
        start_kind => {
            scanner.skip_value()?;
            if start_kind != ValueStart::Null {
                mistyped = Some(format!(
                    "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \
                     \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                    start_kind.go_name()
                ));
            }
        }
    }
    scanner.finish()?;
    mistyped.map_or(Ok(found), |message| Err(DecodeError::Type(message.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_wherever_they_stand() {
        let found = type_meta(br#"{"spec":{"kind":"No"},"kind":"Pod","x":[1],"apiVersion":"v1"}"#).expect("object");
        assert_eq!(found, TypeMeta { api_version: "v1".into(), kind: "Pod".into() });
        assert_eq!(type_meta(b"{}").expect("object"), TypeMeta::default());
    }

    #[test]
    fn bodies_that_are_not_objects_are_refused() {
        for (body, expected) in [
            ("{not json", "invalid character 'n' looking for beginning of object key string"),
            (r#"{"kind":1}"#, "json: cannot unmarshal number into Go struct field .kind of type string"),
            (
                "[]",
                "json: cannot unmarshal array into Go value of type struct { APIVersion string \
                 \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }",
            ),
            (r#"{"kind":1} 2"#, "invalid character '2' after top-level value"),
        ] {
            assert_eq!(type_meta(body.as_bytes()).expect_err("refused").to_string(), expected);
        }
    }
}
