//! Texts and regular expressions.

use super::super::error::EvaluateError;
use super::super::value::Value;
use super::{Outcome, failed, flag};
use crate::json_schema::compile_recent;

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match (function, values) {
        ("contains", [Value::String(text), Value::String(part)]) => flag(text.contains(&**part)),
        ("startsWith", [Value::String(text), Value::String(part)]) => flag(text.starts_with(&**part)),
        ("endsWith", [Value::String(text), Value::String(part)]) => flag(text.ends_with(&**part)),
        ("matches", [Value::String(text), Value::String(pattern)]) => {
            Some(regex(pattern).map(|regex| Value::Bool(regex.is_match(text))))
        }
        ("find", [Value::String(text), Value::String(pattern)]) => Some(
            regex(pattern)
                .map(|regex| Value::text(regex.find(text).map(|found| found.as_str().to_owned()).unwrap_or_default())),
        ),
        ("findAll", [Value::String(text), Value::String(pattern)]) => Some(find_all(text, pattern, usize::MAX)),
        ("findAll", [Value::String(text), Value::String(pattern), Value::Int(limit)]) => {
            Some(find_all(text, pattern, usize::try_from(*limit).unwrap_or(usize::MAX)))
        }
        ("lowerAscii", [Value::String(text)]) => Some(Ok(Value::text(text.to_ascii_lowercase()))),
        ("upperAscii", [Value::String(text)]) => Some(Ok(Value::text(text.to_ascii_uppercase()))),
        ("trim", [Value::String(text)]) => Some(Ok(Value::text(text.trim().to_owned()))),
        ("reverse", [Value::String(text)]) => Some(Ok(Value::text(text.chars().rev().collect::<String>()))),
        ("strings.quote", [Value::String(text)]) => Some(Ok(Value::text(crate::field::quoted(text)))),
        ("charAt", [Value::String(text), Value::Int(at)]) => Some(char_at(text, *at)),
        ("indexOf", [Value::String(text), Value::String(part)]) => Some(index_of(text, part, 0)),
        ("indexOf", [Value::String(text), Value::String(part), Value::Int(from)]) => Some(index_of(text, part, *from)),
        ("lastIndexOf", [Value::String(text), Value::String(part)]) => {
            Some(last_index_of(text, part, text.chars().count() as i64))
        }
        ("lastIndexOf", [Value::String(text), Value::String(part), Value::Int(to)]) => {
            Some(last_index_of(text, part, *to))
        }
        ("replace", [Value::String(text), Value::String(from), Value::String(to)]) => {
            Some(Ok(Value::text(text.replace(&**from, to))))
        }
        ("replace", [Value::String(text), Value::String(from), Value::String(to), Value::Int(times)]) => {
            let replaced = match usize::try_from(*times) {
                Ok(times) => text.replacen(&**from, to, times),
                Err(_) => text.replace(&**from, to),
            };
            Some(Ok(Value::text(replaced)))
        }
        ("split", [Value::String(text), Value::String(separator)]) => Some(Ok(split(text, separator, -1))),
        ("split", [Value::String(text), Value::String(separator), Value::Int(limit)]) => {
            Some(Ok(split(text, separator, *limit)))
        }
        ("substring", [Value::String(text), Value::Int(from)]) => {
            Some(substring(text, *from, text.chars().count() as i64))
        }
        ("substring", [Value::String(text), Value::Int(from), Value::Int(to)]) => Some(substring(text, *from, *to)),
        ("join", [list]) => join(list, ""),
        ("join", [list, Value::String(separator)]) => join(list, separator),
        ("jsonpatch.escapeKey", [Value::String(key)]) => {
            Some(Ok(Value::text(key.replace('~', "~0").replace('/', "~1"))))
        }
        _ => None,
    }
}

fn regex(pattern: &str) -> Result<regex::Regex, EvaluateError> {
    compile_recent(pattern).map_err(|error| EvaluateError::new(format!("error parsing regexp: {error}")))
}

fn find_all<'a>(text: &str, pattern: &str, limit: usize) -> Outcome<'a> {
    let regex = regex(pattern)?;
    Ok(Value::list(regex.find_iter(text).take(limit).map(|found| Value::text(found.as_str().to_owned())).collect()))
}

fn char_at<'a>(text: &str, at: i64) -> Outcome<'a> {
    let length = text.chars().count() as i64;
    if at < 0 || at > length {
        return Err(EvaluateError::new(format!("index out of range: {at}")));
    }
    Ok(Value::text(text.chars().nth(at as usize).map(String::from).unwrap_or_default()))
}

fn index_of<'a>(text: &str, part: &str, from: i64) -> Outcome<'a> {
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let rest = &text[byte_of(text, from)?..];
    Ok(Value::Int(rest.find(part).map_or(-1, |at| from + rest[..at].chars().count() as i64)))
}

fn last_index_of<'a>(text: &str, part: &str, to: i64) -> Outcome<'a> {
    if part.is_empty() {
        return Ok(Value::Int(to));
    }
    // What is found starts at most there.
    let last = byte_of(text, to)?;
    let length = part.chars().count();
    let end = text[last..].char_indices().nth(length).map_or(text.len(), |(at, _)| last + at);
    Ok(Value::Int(text[..end].rfind(part).map_or(-1, |at| text[..at].chars().count() as i64)))
}

/// Where a character of a text starts, or its end.
fn byte_of(text: &str, at: i64) -> Result<usize, EvaluateError> {
    let starts = text.char_indices().map(|(start, _)| start).chain([text.len()]);
    let found = usize::try_from(at).ok().and_then(|at| starts.into_iter().nth(at));
    found.ok_or_else(|| EvaluateError::new(format!("index out of range: {at}")))
}

fn substring<'a>(text: &str, from: i64, to: i64) -> Outcome<'a> {
    let length = text.chars().count() as i64;
    if from > to {
        return Err(EvaluateError::new(format!("invalid substring range. start: {from}, end: {to}")));
    }
    for at in [from, to] {
        if at < 0 || at > length {
            return Err(EvaluateError::new(format!("index out of range: {at}")));
        }
    }
    Ok(Value::text(text.chars().skip(from as usize).take((to - from) as usize).collect::<String>()))
}

fn split<'a>(text: &str, separator: &str, limit: i64) -> Value<'a> {
    let owned = |part: &str| Value::text(part.to_owned());
    let parts = match (limit, separator.is_empty()) {
        (0, _) => Vec::new(),
        (1, _) => vec![owned(text)],
        (_, true) => {
            let mut parts: Vec<String> = text.chars().map(String::from).collect();
            if limit > 0 && parts.len() > limit as usize {
                let rest = parts.split_off(limit as usize - 1).concat();
                parts.push(rest);
            }
            parts.into_iter().map(Value::text).collect()
        }
        (limit, false) if limit > 0 => text.splitn(limit as usize, separator).map(owned).collect(),
        _ => text.split(separator).map(owned).collect(),
    };
    Value::list(parts)
}

fn join<'a>(list: &Value<'a>, separator: &str) -> Option<Outcome<'a>> {
    let elements = list.elements()?;
    let mut texts = Vec::with_capacity(elements.len());
    for element in elements.iter() {
        match element {
            Value::String(text) => texts.push(text.to_string()),
            _ => return failed("no such overload"),
        }
    }
    Some(Ok(Value::text(texts.join(separator))))
}
