//! Hides the values of Secrets in Helm's messages, which go into logs and into the status of the object.

use serde_yaml_ng::Value;

use crate::support::Redactor;

/// The message without values of the Secrets, which are documents in YAML.
pub fn hide(message: &str, secrets: &[Vec<u8>]) -> String {
    let mut known = secrets.to_vec();
    for secret in secrets {
        if let Ok(document) = serde_yaml_ng::from_slice::<Value>(secret) {
            collect(&document, &mut known);
        }
    }
    match Redactor::new(&known) {
        Ok(redactor) => redactor.text(message),
        Err(_) => "Helm failed, with a message that may hold secrets".to_owned(),
    }
}

/// The texts and numbers of a document.
fn collect(value: &Value, found: &mut Vec<Vec<u8>>) {
    match value {
        Value::String(text) => found.push(text.clone().into_bytes()),
        Value::Number(number) => found.push(number.to_string().into_bytes()),
        Value::Sequence(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Mapping(fields) => fields.values().for_each(|field| collect(field, found)),
        Value::Tagged(tagged) => collect(&tagged.value, found),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secrets_are_in_no_message() {
        let secrets = [b"db:\n  words: hunter2-hunter2\n  list: [12345678901]\n".to_vec(), b"not: [yaml".to_vec()];
        let message =
            "Secret in version v1 cannot be handled: Invalid value: \"hunter2-hunter2\" and 12345678901 in chart a";
        let hidden = hide(message, &secrets);
        assert!(!hidden.contains("hunter2") && !hidden.contains("12345678901"), "{hidden}");
        assert!(hidden.ends_with("in chart a"), "{hidden}");
        assert_eq!(hide("chart a not found", &[]), "chart a not found");
    }
}
