//! Finds and replaces fields in the bytes of compact JSON, without parsing their values.

use std::ops::Range;

/// One field of an object.
pub struct Field<'b> {
    /// As it is in the bytes: a name with an escape matches no name that is searched for.
    pub name: &'b str,
    /// From the quote of its name to the end of its value.
    pub whole: Range<usize>,
    pub value: Range<usize>,
}

/// Calls `each` for every field of an object whose first field starts at `first`, after the brace. Returns the position of
/// the closing brace, or `None` if the bytes are not compact JSON.
pub fn fields<'b>(bytes: &'b [u8], first: usize, mut each: impl FnMut(Field<'b>)) -> Option<usize> {
    if *bytes.get(first)? == b'}' {
        return Some(first);
    }
    let mut start = first;
    loop {
        let colon = text_end(bytes, start)?;
        if *bytes.get(colon)? != b':' {
            return None;
        }
        let end = value_end(bytes, colon + 1)?;
        let name = std::str::from_utf8(&bytes[start + 1..colon - 1]).ok()?;
        each(Field { name, whole: start..end, value: colon + 1..end });
        match bytes.get(end)? {
            b',' => start = end + 1,
            b'}' => return Some(end),
            _ => return None,
        }
    }
}

/// The range of the value of one field.
pub fn value(bytes: &[u8], first: usize, name: &str) -> Option<Range<usize>> {
    let mut found = None;
    fields(bytes, first, |field| {
        if field.name == name {
            found = Some(field.value);
        }
    })?;
    found
}

/// The bytes with the value of one field replaced. A missing field is inserted in the order of names.
pub fn put(bytes: &[u8], first: usize, name: &str, value: &[u8]) -> Option<Vec<u8>> {
    let (mut there, mut next) = (None, None);
    let end = fields(bytes, first, |field| {
        if field.name == name {
            there = Some(field.value);
        } else if next.is_none() && field.name > name {
            next = Some(field.whole.start);
        }
    })?;
    let quoted = format!("\"{name}\":");
    let (kept, before, after) = match (there, next) {
        (Some(there), _) => (there, "", ""),
        (None, Some(next)) => (next..next, &*quoted, ","),
        (None, None) if end == first => (end..end, &*quoted, ""),
        (None, None) => (end..end, &*format!(",{quoted}"), ""),
    };
    let parts = [&bytes[..kept.start], before.as_bytes(), value, after.as_bytes(), &bytes[kept.end..]];
    Some(parts.concat())
}

/// The position after the closing quote of the string that starts at `at`.
fn text_end(bytes: &[u8], at: usize) -> Option<usize> {
    if *bytes.get(at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        match bytes[at] {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// The position after the value that starts at `at`.
fn value_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match *bytes.get(at)? {
            b'"' => at = text_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                at += 1;
            }
            b',' | b':' if depth > 0 => at += 1,
            b',' | b'}' | b']' | b':' => return None,
            _ => at += bytes[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b':'))?,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn all_fields_are_found() {
        for object in [
            json!({}),
            json!({"a": 1}),
            json!({"a": "x\"}", "b\\": [1, {"c": "]"}], "d": {"e": {}, "f": null}, "g": -1.5, "h": true, "": []}),
        ] {
            let text = object.to_string();
            let mut found = serde_json::Map::new();
            let end = fields(text.as_bytes(), 1, |field| {
                let name: String = serde_json::from_str(&format!("\"{}\"", field.name)).expect("a name");
                found.insert(name, serde_json::from_str(&text[field.value.clone()]).expect("a value"));
                assert!(text[field.whole.clone()].ends_with(&text[field.value]));
            });
            assert_eq!(end, Some(text.len() - 1));
            assert_eq!(Value::Object(found), object);
        }
    }

    #[test]
    fn fields_are_replaced_or_inserted_in_order() {
        for (object, name) in [
            (json!({}), "b"),
            (json!({"b": [1]}), "b"),
            (json!({"a": {"b": 1}}), "b"),
            (json!({"c": 1}), "b"),
            (json!({"a": 1, "bb": 3, "c": 2}), "b"),
            (json!({"a": 1, "b": "x}", "c": 2}), "b"),
        ] {
            let mut expected = object.clone();
            expected[name] = json!({"new": "\""});
            let put = put(object.to_string().as_bytes(), 1, name, expected[name].to_string().as_bytes());
            assert_eq!(String::from_utf8(put.expect("an object")).expect("text"), expected.to_string());
            assert_eq!(value(expected.to_string().as_bytes(), 1, "none"), None);
        }
    }

    #[test]
    fn other_bytes_than_compact_json_are_refused() {
        for text in
            ["{", "{\"a\"}", "{\"a\":1", "{\"a\":}", "{a:1}", "{\"a\":\"b}", "{ \"a\":1}", "{\"a\":[1}", "{\"a\":1]"]
        {
            assert_eq!(fields(text.as_bytes(), 1, |_| ()), None, "{text}");
        }
    }
}
