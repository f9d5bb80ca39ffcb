//! Where the fields of a stored object are in its bytes, found without reading their values.

use std::ops::Range;

/// One field of an object.
pub struct Field<'b> {
    /// As it stands there: a name with an escape in it is like no name that is looked for.
    pub name: &'b str,
    /// From its name's quote to its value's end.
    pub whole: Range<usize>,
    pub value: Range<usize>,
}

/// Tells of each field of an object, of which the first begins at `first`, behind the brace. The answer is where the object's
/// closing brace is; nothing, where the bytes are not compact JSON.
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

/// Behind the quote that ends the text which begins at `at`.
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

/// Behind the value that begins at `at`.
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
    fn fields_are_found_where_they_are() {
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
    fn what_is_no_compact_json_has_no_fields() {
        for text in
            ["{", "{\"a\"}", "{\"a\":1", "{\"a\":}", "{a:1}", "{\"a\":\"b}", "{ \"a\":1}", "{\"a\":[1}", "{\"a\":1]"]
        {
            assert_eq!(fields(text.as_bytes(), 1, |_| ()), None, "{text}");
        }
    }
}
