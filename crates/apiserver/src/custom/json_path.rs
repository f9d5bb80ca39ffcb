//! The simple JSON paths of printer columns and scale subresources.

use serde_json::Value;

/// A path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// The items whose path has the value.
    Where(JsonPath, String),
}

impl JsonPath {
    pub fn parse(text: &str) -> Option<JsonPath> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(text);
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let end = bracket_end(after)?;
                steps.push(bracket(after[..end].trim())?);
                rest = &after[end + 1..];
            } else {
                let after = rest.strip_prefix('.').unwrap_or(rest);
                let end = name_end(after);
                match &after[..end] {
                    "" => return None,
                    "*" => steps.push(Step::All),
                    name => steps.push(Step::Field(name.replace("\\.", "."))),
                }
                rest = &after[end..];
            }
        }
        Some(JsonPath(steps))
    }

    /// All values at the path.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.apply(value)).collect();
        }
        found.retain(|value| !value.is_null());
        found
    }
}

/// The end of a field name, which may contain escaped dots.
fn name_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    (0..bytes.len())
        .find(|at| matches!(bytes[*at], b'.' | b'[') && (*at == 0 || bytes[at - 1] != b'\\'))
        .unwrap_or(bytes.len())
}

fn bracket_end(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), character) if character == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = inner.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        let (left, right) = condition.split_once("==")?;
        let path = left.trim().strip_prefix('@')?;
        return Some(Step::Where(JsonPath::parse(path)?, unquote(right.trim()).to_owned()));
    }
    if inner.starts_with(['\'', '"']) {
        return Some(Step::Field(unquote(inner).to_owned()));
    }
    inner.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('\'').or_else(|| inner('"')).unwrap_or(text)
}

impl Step {
    fn apply<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let items = || match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            _ => Vec::new(),
        };
        match self {
            Step::Field(name) => value.get(name).into_iter().collect(),
            Step::Index(index) => {
                let Some(items) = value.as_array() else { return Vec::new() };
                let at = if *index < 0 { items.len() as i64 + index } else { *index };
                usize::try_from(at).ok().and_then(|at| items.get(at)).into_iter().collect()
            }
            Step::All => items(),
            Step::Where(path, expected) => {
                let is = |item: &&'v Value| {
                    path.find(item).first().is_some_and(|value| match value {
                        Value::String(text) => text == expected,
                        other => other.to_string() == *expected,
                    })
                };
                items().into_iter().filter(is).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_select_values() {
        let object = json!({"a": {"b.c": 1, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}]}});
        for (path, expected) in [
            (".a['b.c']", json!([1])),
            (".a.b\\.c", json!([1])),
            (".a.list[1].v", json!([2])),
            (".a.list[-1].v", json!([2])),
            (".a.list[*].v", json!([1, 2])),
            (".a.list[?(@.n=='y')].v", json!([2])),
            ("{.a.list[0].n}", json!(["x"])),
            (".a.none.v", json!([])),
        ] {
            assert_eq!(json!(JsonPath::parse(path).unwrap().find(&object)), expected, "{path}");
        }
        assert_eq!(JsonPath::parse(".a[").map(|path| path.0.len()), None);
    }
}
