//! Resolves paths such as `.spec.items['a.b']` against a schema.

use knarr_api::value::Read;
use serde_json::Value;

/// Returns the schema of the field at a path and the steps of the path, or the error of the path.
pub fn resolve<'a>(path: &str, schema: &'a Value, brackets: bool) -> Result<(Vec<String>, Option<&'a Value>), String> {
    let mut at = Some(schema);
    let mut steps = Vec::new();
    let mut tokens = tokens(path).into_iter();
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let text = tokens.next().ok_or_else(unexpected_end)?;
                if text.len() < 2 || !text.starts_with('\'') || !text.ends_with('\'') {
                    return Err(format!("expected single quoted string but got {text}"));
                }
                text[1..text.len() - 1].replace("\\'", "'").replace("\\\\", "\\")
            }
            "." => tokens.next().ok_or_else(unexpected_end)?.to_owned(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        at = step(at, &name)?;
        steps.push(name);
        if token == "[" {
            match tokens.next().ok_or_else(unexpected_end)? {
                "]" => {}
                other => return Err(format!("expected ] but got {other}")),
            }
        }
    }
    Ok((steps, at))
}

fn unexpected_end() -> String {
    "unexpected end of JSON path".to_owned()
}

fn step<'a>(schema: Option<&'a Value>, name: &str) -> Result<Option<&'a Value>, String> {
    let missing = || "does not refer to a valid field".to_owned();
    let schema = schema.ok_or_else(missing)?;
    if let Some(properties) = schema.fields(&["properties"]).filter(|properties| !properties.is_empty()) {
        return properties.get(name).map(Some).ok_or_else(missing);
    }
    match &schema["additionalProperties"] {
        Value::Null => Err(missing()),
        Value::Bool(_) => Ok(None),
        schema => Ok(Some(schema)),
    }
}

/// Splits a path into tokens. Delimiters are tokens; quoted text is not split.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let bytes = rest.as_bytes();
        let end = if bytes[0] == b'\'' {
            (1..bytes.len()).find(|i| bytes[*i] == b'\'' && bytes[i - 1] != b'\\').map_or(bytes.len(), |i| i + 1)
        } else {
            bytes.iter().position(|byte| matches!(byte, b'.' | b'[' | b']')).unwrap_or(bytes.len()).max(1)
        };
        let (token, after) = rest.split_at(end);
        tokens.push(token);
        rest = after;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_fields() {
        let schema = json!({"properties": {"spec": {"properties": {"a.b": {"type": "string"}, "m": {"additionalProperties": {"type": "integer"}}}}}});
        for (path, kind) in [
            (".spec['a.b']", Ok("string")),
            (".spec.m.any", Ok("integer")),
            (".spec.x", Err("does not refer to a valid field")),
            (".spec.", Err("unexpected end of JSON path")),
            ("spec", Err("expected [ or . but got: spec")),
            (".spec[0]", Err("expected single quoted string but got 0")),
        ] {
            let found = resolve(path, &schema, true).map(|(_, schema)| schema.unwrap()["type"].as_str().unwrap());
            assert_eq!(found, kind.map_err(str::to_owned), "{path}");
        }
        assert_eq!(resolve(".spec['a.b']", &schema, false).unwrap_err(), "array notation is not allowed");
    }
}
