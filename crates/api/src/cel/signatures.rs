//! The signatures of all functions and operators, from the table beside this file.
//!
//! A line is `function(arguments) result`, or `receiver.function(arguments) result`. Capital letters stand for any type,
//! the same one wherever they occur; `N` stands for a number.

use super::authorizer;
use super::types::Type;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

#[derive(Debug)]
pub(super) struct Signature {
    /// The receiver comes first.
    pub arguments: Vec<Type>,
    pub result: Type,
    pub has_receiver: bool,
}

/// Names before a dot that are libraries, not variables.
const LIBRARIES: [&str; 9] = ["optional", "strings", "lists", "sets", "ip", "format", "jsonpatch", "math", "cel"];

static SIGNATURES: LazyLock<HashMap<&'static str, Vec<Signature>>> = LazyLock::new(|| {
    let mut all: HashMap<&'static str, Vec<Signature>> = HashMap::new();
    for line in include_str!("signatures.txt").lines() {
        if let Some((name, signature)) = read(line) {
            all.entry(name).or_default().push(signature);
        }
    }
    all
});

pub(super) fn is_library(name: &str) -> bool {
    LIBRARIES.contains(&name)
}

/// The signatures of a function; those of a library include its name.
pub(super) fn of(function: &str) -> &'static [Signature] {
    let function = match function {
        "_<=_" | "_>_" | "_>=_" => "_<_",
        other => other,
    };
    SIGNATURES.get(function).map_or(&[], Vec::as_slice)
}

fn read(line: &'static str) -> Option<(&'static str, Signature)> {
    let (head, result) = line.rsplit_once(") ").or_else(|| line.rsplit_once(' '))?;
    let (head, result) = match line.strip_suffix(')') {
        // The result has brackets of its own.
        Some(_) => {
            let at = line.find(") ")?;
            let at = matching(line)?.max(at);
            (&line[..at], line[at + 1..].trim())
        }
        None => (head, result),
    };
    let open = opening(head)?;
    let (name, arguments) = (&head[..open], &head[open + 1..]);
    let (receiver, name) = match name.rfind('.') {
        Some(dot) if !is_static(&name[..dot], arguments, &name[dot + 1..]) => (Some(&name[..dot]), &name[dot + 1..]),
        _ => (None, name),
    };
    let mut types = Vec::new();
    types.extend(receiver.and_then(kind));
    types.extend(parts(arguments).into_iter().filter_map(kind));
    Some((name, Signature { arguments: types, result: kind(result)?, has_receiver: receiver.is_some() }))
}

/// Whether the name before the dot is a library: some names are both a library and a type.
fn is_static(name: &str, arguments: &str, function: &str) -> bool {
    match name {
        "ip" => function == "isCanonical",
        "optional" => true,
        "format" => function == "named" || arguments.is_empty(),
        other => is_library(other),
    }
}

/// The position where the argument list closes.
fn matching(line: &str) -> Option<usize> {
    let open = opening(&line[..line.find(") ")?])?;
    let mut depth = 0;
    for (at, c) in line.char_indices().skip(open) {
        match c {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The position where the argument list opens: after the last dot outside brackets.
fn opening(head: &str) -> Option<usize> {
    let mut depth = 0;
    let mut start = 0;
    for (at, c) in head.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '.' if depth == 0 => start = at,
            _ => {}
        }
    }
    head[start..].find('(').map(|at| start + at)
}

fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

fn kind(text: &'static str) -> Option<Type> {
    if let Some(inner) = text.strip_suffix(')') {
        let (outer, inner) = inner.split_once('(')?;
        let inner = parts(inner);
        return match (outer, &inner[..]) {
            ("list", [element]) => Some(Type::list(kind(element)?)),
            ("map", [key, value]) => Some(Type::map(kind(key)?, kind(value)?)),
            ("optional", [inner]) => Some(Type::Optional(Arc::new(kind(inner)?))),
            _ => None,
        };
    }
    Some(match text {
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Type,
        "quantity" => Type::Opaque("kubernetes.Quantity"),
        "url" => Type::Opaque("kubernetes.URL"),
        "ip" => Type::Opaque("net.IP"),
        "cidr" => Type::Opaque("net.CIDR"),
        "format" => Type::Opaque("kubernetes.NamedFormat"),
        "semver" => Type::Opaque("kubernetes.Semver"),
        "authorizer" => Type::Opaque(authorizer::AUTHORIZER),
        "path_check" => Type::Opaque(authorizer::PATH_CHECK),
        "group_check" => Type::Opaque(authorizer::GROUP_CHECK),
        "resource_check" => Type::Opaque(authorizer::RESOURCE_CHECK),
        "decision" => Type::Opaque(authorizer::DECISION),
        _ => Type::Parameter(text.chars().next().filter(char::is_ascii_uppercase)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_a_signature() {
        for line in include_str!("signatures.txt").lines() {
            let (name, signature) = read(line).unwrap_or_else(|| panic!("{line}"));
            let arguments: Vec<String> = signature.arguments.iter().map(ToString::to_string).collect();
            assert!(line.contains(name), "{line}: {name} {arguments:?}");
        }
        let query = &of("getQuery")[0];
        assert!(query.has_receiver && query.result.to_string() == "map(string, list(string))");
        assert!(of("sets.contains")[0].arguments.len() == 2);
        assert!(of("optional.of").len() == 1 && of("orValue")[0].has_receiver);
        assert!(of("ip.isCanonical").len() == 1 && of("validate")[0].has_receiver && of("format.uri").len() == 1);
    }
}
