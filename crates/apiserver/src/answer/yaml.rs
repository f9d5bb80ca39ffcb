//! Objects as YAML. A text that another reader could take for something else is quoted, times above all.

use serde_json::Value;

/// Writes a value as a YAML document.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => block(&mut out, value, 0),
        Value::Array(items) if !items.is_empty() => block(&mut out, value, 0),
        other => {
            scalar(&mut out, other);
            out.push('\n');
        }
    }
    out
}

/// Writes a map or list that is not empty, one entry a line.
fn block(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) => {
            for (at, (key, value)) in fields.iter().enumerate() {
                // The first key after a dash stands behind it.
                if at > 0 || !out.ends_with("- ") {
                    indent(out, depth);
                }
                text(out, key);
                out.push(':');
                entry(out, value, depth + 1);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                if at > 0 || !out.ends_with("- ") {
                    indent(out, depth);
                }
                out.push_str("- ");
                match item {
                    Value::Object(fields) if !fields.is_empty() => block(out, item, depth + 1),
                    Value::Array(inner) if !inner.is_empty() => block(out, item, depth + 1),
                    other => {
                        scalar(out, other);
                        out.push('\n');
                    }
                }
            }
        }
        other => scalar(out, other),
    }
}

/// Writes what follows a key: on its line, or below it. Lists stand no deeper than their key.
fn entry(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            block(out, value, depth);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            block(out, value, depth - 1);
        }
        other => {
            out.push(' ');
            scalar(out, other);
            out.push('\n');
        }
    }
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(string) => text(out, string),
        Value::Object(_) => out.push_str("{}"),
        Value::Array(_) => out.push_str("[]"),
        other => out.push_str(&other.to_string()),
    }
}

/// A text in quotes is written as JSON writes it, which YAML reads too.
fn text(out: &mut String, string: &str) {
    if is_plain(string) {
        out.push_str(string);
    } else {
        out.push_str(&Value::String(string.to_owned()).to_string());
    }
}

fn is_plain(string: &str) -> bool {
    const WORDS: [&str; 11] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"];
    let mut bytes = string.bytes();
    let begins = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'/'));
    begins
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'/' | b'-' | b'.'))
        && !WORDS.iter().any(|word| string.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_is_read_back_as_it_was() {
        let value = json!({
            "apiVersion": "apps/v1", "time": "2026-01-02T03:04:05Z", "empty": {}, "none": [], "null": null, "yes": "yes",
            "list": [1, "two", {"a": 1, "b": [{"c": "x: y"}, []]}, [[true], "n"]], "text": "line\nline", "number": "12",
            "f:metadata": {".": {}},
        });
        let written = write(&value);
        let read = knarr_api::decode::untyped_yaml(written.as_bytes()).unwrap();
        assert_eq!(read.value, value, "{written}");
        assert!(written.contains("time: \"2026-01-02T03:04:05Z\""));
    }
}
