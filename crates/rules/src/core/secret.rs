//! Secret: confidential data, and the keys that each type of secret requires.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::config_map::SIZE_LIMIT;
use crate::common::checks::IMMUTABLE;
use crate::common::columns::{self, field};
use crate::common::equality::same;
use crate::common::{defaults as set, formats};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const SECRET: &str = "io.k8s.api.core.v1.Secret";
const COLUMNS: &[Column] =
    &[columns::NAME, field("Type", "string", SECRET, "type"), field("Data", "string", SECRET, "data"), columns::AGE];

/// The rules of Secret.
pub struct Secret;

impl KindRules for Secret {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let Some(secret) = object.as_object_mut() else { return };
        merge_string_data(secret);
        set::text(secret, "type", "Opaque");
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if let Some(old) = old {
            if object.text(&["type"]) != old.text(&["type"]) {
                errors.invalid(&Path::root("type"), object.text(&["type"]), IMMUTABLE);
            }
            immutable(&mut errors, object, old, &["data"]);
        }
        let path = Path::root("data");
        let mut size = 0;
        for (key, value) in object.fields(&["data"]).into_iter().flatten() {
            names::check(&mut errors, &path.key(key), key, formats::config_key);
            size += decoded_length(value);
        }
        if size > SIZE_LIMIT {
            errors.too_long(&path, SIZE_LIMIT);
        }
        by_type(&mut errors, object, &path);
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let count = object.fields(&["data"]).map_or(0, serde_json::Map::len);
        vec![columns::name(object), object.text(&["type"]).into(), count.into(), columns::age(object, now)]
    }
}

/// Merges `stringData` into `data`.
fn merge_string_data(secret: &mut set::Fields) {
    let Some(Value::Object(texts)) = secret.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    let data = set::object_or_new(secret, "data");
    for (key, text) in texts {
        data.insert(key, STANDARD.encode(text.as_str().unwrap_or_default()).into());
    }
}

/// Returns the number of bytes that a base64 text encodes.
pub fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// Validates an update of an immutable ConfigMap or Secret.
pub fn immutable(errors: &mut Errors, object: &Value, old: &Value, fields: &[&str]) {
    const DETAIL: &str = "field is immutable when `immutable` is set";
    if old.flag(&["immutable"]) != Some(true) {
        return;
    }
    if object.flag(&["immutable"]) != Some(true) {
        errors.forbidden(&Path::root("immutable"), DETAIL);
    }
    for field in fields {
        if !same(object.at(&[field]), old.at(&[field])) {
            errors.forbidden(&Path::root(field), DETAIL);
        }
    }
}

fn by_type(errors: &mut Errors, secret: &Value, path: &Path<'_>) {
    const ACCOUNT: &str = "kubernetes.io/service-account.name";
    let data = secret.at(&["data"]);
    let require = |errors: &mut Errors, keys: &[&str]| {
        for key in keys.iter().filter(|key| data.get(**key).is_none()) {
            errors.required(&path.key(key), "");
        }
    };
    match secret.text(&["type"]) {
        "kubernetes.io/service-account-token" if secret.text(&["metadata", "annotations", ACCOUNT]).is_empty() => {
            let metadata = Path::root("metadata");
            errors.required(&metadata.child("annotations").key(ACCOUNT), "");
        }
        "kubernetes.io/dockercfg" => docker_config(errors, data, ".dockercfg", path),
        "kubernetes.io/dockerconfigjson" => docker_config(errors, data, ".dockerconfigjson", path),
        "kubernetes.io/basic-auth" if data.get("username").is_none() && data.get("password").is_none() => {
            require(errors, &["username", "password"]);
        }
        "kubernetes.io/ssh-auth" if data.text(&["ssh-privatekey"]).is_empty() => {
            errors.required(&path.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => require(errors, &["tls.crt", "tls.key"]),
        _ => {}
    }
}

/// Validates a Docker configuration, which must be a JSON object. Messages do not contain its content.
fn docker_config(errors: &mut Errors, data: &Value, key: &str, path: &Path<'_>) {
    let Some(text) = data.get(key).and_then(Value::as_str) else { return errors.required(&path.key(key), "") };
    let bytes = STANDARD.decode(text).unwrap_or_default();
    if let Err(wrong) = object_error(&bytes) {
        errors.invalid(&path.key(key), "<secret contents redacted>", wrong);
    }
}

/// Returns the message of Go's JSON decoder if the bytes are not a JSON object.
fn object_error(bytes: &[u8]) -> Result<(), String> {
    let kind = match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(_) | Value::Null) => return Ok(()),
        Ok(Value::Array(_)) => "array",
        Ok(Value::String(_)) => "string",
        Ok(Value::Number(_)) => "number",
        Ok(Value::Bool(_)) => "bool",
        Err(error) if error.is_eof() => return Err("unexpected end of JSON input".to_owned()),
        Err(error) => {
            let at = bytes.get(error.column().saturating_sub(1)).copied().unwrap_or_default() as char;
            let place =
                if error.column() <= 1 { "looking for beginning of value" } else { "after object key:value pair" };
            return Err(format!("invalid character {at:?} {place}"));
        }
    };
    Err(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn texts_become_data() {
        let secret = defaulted(&Secret, json!({"stringData": {"a": "b"}, "data": {"a": "x", "c": "ZA=="}}));
        assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "Yg==", "c": "ZA=="}}));
    }

    #[test]
    fn types_need_their_keys() {
        for (secret, expected) in [
            (json!({"type": "Opaque"}), vec![]),
            (
                json!({"type": "kubernetes.io/tls"}),
                vec!["data[tls.crt]: Required value", "data[tls.key]: Required value"],
            ),
            (json!({"type": "kubernetes.io/dockerconfigjson"}), vec!["data[.dockerconfigjson]: Required value"]),
            (
                json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "eA=="}}),
                vec![
                    "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": invalid character 'x' looking for \
                 beginning of value",
                ],
            ),
            (
                json!({"type": "kubernetes.io/service-account-token"}),
                vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            ),
        ] {
            assert_eq!(messages(&Secret, &secret, None), expected);
        }
        assert_eq!(
            messages(&Secret, &json!({"type": "a"}), Some(&json!({"type": "b"}))),
            ["type: Invalid value: \"a\": field is immutable"]
        );
        assert_eq!(decoded_length(&json!("Yg==")), 1);
    }
}
