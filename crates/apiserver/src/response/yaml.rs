//! Encodes objects as YAML in the form that Kubernetes uses.

use std::cmp::Ordering;

use serde_json::Value;

use super::yaml_text::{Style, double_quoted, single_quoted, style};

/// Writes a value as a YAML document.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => block(&mut out, value, 0),
        Value::Array(items) if !items.is_empty() => block(&mut out, value, 0),
        other => {
            scalar(&mut out, other, 0);
            out.push('\n');
        }
    }
    out
}

/// Writes one element of a list at the top of a document or below one of its keys.
pub fn write_item(item: Value) -> String {
    write(&Value::Array(vec![item]))
}

/// Whether a key comes before another in a document.
pub fn comes_before(key: &str, other: &str) -> bool {
    natural_order(key, other) == Ordering::Less
}

/// Writes a non-empty map or list, one entry per line.
fn block(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
            sorted.sort_by(|(one, _), (other, _)| natural_order(one, other));
            for (at, (key, value)) in sorted.into_iter().enumerate() {
                // The first key after a dash is on its line.
                if at > 0 || !out.ends_with("- ") {
                    indent(out, depth);
                }
                name(out, key);
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
                        scalar(out, other, depth + 1);
                        out.push('\n');
                    }
                }
            }
        }
        other => scalar(out, other, depth),
    }
}

/// Writes the value of a key: on its line, or below it. Lists are not indented below their key.
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
            scalar(out, other, depth);
            out.push('\n');
        }
    }
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn scalar(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::String(string) => match style(string) {
            Style::Plain => out.push_str(string),
            Style::Single => out.push_str(&single_quoted(string)),
            Style::Double => out.push_str(&double_quoted(string)),
            Style::Literal => literal(out, string, depth),
        },
        Value::Object(_) => out.push_str("{}"),
        Value::Array(_) => out.push_str("[]"),
        other => out.push_str(&other.to_string()),
    }
}

fn name(out: &mut String, string: &str) {
    match style(string) {
        Style::Plain => out.push_str(string),
        Style::Single => out.push_str(&single_quoted(string)),
        // A key must be on one line.
        Style::Double | Style::Literal => out.push_str(&double_quoted(string)),
    }
}

/// A text of several lines as a literal block below its key.
fn literal(out: &mut String, string: &str, depth: usize) {
    out.push('|');
    if string.starts_with([' ', '\n']) {
        out.push('2');
    }
    let ending = &string[string.trim_end_matches('\n').len()..];
    match ending.len() {
        0 => out.push('-'),
        1 if string.len() > 1 => {}
        _ => out.push('+'),
    }
    for line in string.strip_suffix('\n').unwrap_or(string).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            indent(out, depth);
            out.push_str(line);
        }
    }
}

/// The order people expect of keys: letters after other characters, numbers by their size.
fn natural_order(one: &str, other: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) else { return a.len().cmp(&b.len()) };
    match (a[at].is_alphabetic(), b[at].is_alphabetic()) {
        (true, true) => return a[at].cmp(&b[at]),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // Zeros behind other digits count: 10 and 1x differ by more than a leading zero.
    let inside = (a[at] == '0' || b[at] == '0')
        && a[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|digit| *digit != '0');
    let number = |text: &[char]| {
        let digits = text.iter().take_while(|c| c.is_ascii_digit());
        let digits: Vec<u32> = digits.filter_map(|digit| digit.to_digit(10)).collect();
        let start = i64::from(inside);
        let value = digits.iter().fold(start, |sum, digit| sum.wrapping_mul(10).wrapping_add(i64::from(*digit)));
        (value, digits.len())
    };
    number(&a[at..]).cmp(&number(&b[at..])).then(a[at].cmp(&b[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_round_trips() {
        let value = json!({
            "apiVersion": "apps/v1", "time": "2026-01-02T03:04:05Z", "empty": {}, "none": [], "null": null, "yes": "yes",
            "list": [1, "two", {"a": 1, "b": [{"c": "x: y"}, []]}, [[true], "n"]], "text": "line\nline", "number": "12",
            "f:metadata": {".": {}},
        });
        let written = write(&value);
        let read = knarr_api::decode::untyped_yaml(written.as_bytes()).unwrap();
        assert_eq!(read.value, value, "{written}");
        assert!(written.contains("time: \"2026-01-02T03:04:05Z\""));
        assert!(written.contains("f:metadata:\n  .: {}\n"), "{written}");
        assert!(written.contains("text: |-\n  line\n  line\n"), "{written}");
    }

    #[test]
    fn keys_are_in_natural_order() {
        let mut keys = ["b", "a10", "a9", "B", "f:x", ".", "k:{\"a\":1}", "a"];
        keys.sort_by(|one, other| natural_order(one, other));
        assert_eq!(keys, [".", "B", "a", "a9", "a10", "b", "f:x", "k:{\"a\":1}"]);
    }
}
