//! JSON as Go encodes it in error messages.

use serde_json::Value;

/// Renders a value of an internal type that is not in `internal_types.txt`: its Go field names and values, in order.
pub fn struct_json(fields: &[(&str, Value)]) -> String {
    let parts: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    escape_html(&format!("{{{}}}", parts.join(",")))
}

/// Escapes the characters that are special in HTML, as Go's JSON encoder does.
pub fn escape_html(text: &str) -> String {
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", character as u32)),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_keep_their_order_and_are_escaped() {
        assert_eq!(struct_json(&[("Kind", "Role".into()), ("N", 1.into())]), r#"{"Kind":"Role","N":1}"#);
        assert_eq!(struct_json(&[("A", "<b>&".into())]), r#"{"A":"\u003cb\u003e\u0026"}"#);
    }
}
