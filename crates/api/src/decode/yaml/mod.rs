//! YAML 1.1 as Kubernetes reads it, converted to JSON.

mod directives;
mod events;
mod scalar;

use super::error::{DecodeError, StrictProblem};
use super::path::quoted;
use events::{Content, Events, Failure};
use scalar::Scalar;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The maximum depth of a document.
const MAX_DEPTH: usize = super::scanner::MAX_VALUE_DEPTH;

/// Ten times the size of the largest object that the server stores: no valid object repeats more text through aliases.
const MAX_ALIASED_BYTES: usize = 16 * 1024 * 1024;

/// Reads the first document of a text, and reports duplicate keys.
pub(super) fn read(bytes: &[u8]) -> Result<(Value, Option<StrictProblem>), DecodeError> {
    let text = String::from_utf8_lossy(bytes);
    let document = parse(&text).map_err(failed)?;
    let mut reader = Reader::default();
    let value = match &document.root {
        Some(root) => reader.value(&document, *root).map_err(failed)?,
        None => Value::Null,
    };
    let problem = (!reader.duplicates.is_empty())
        .then(|| StrictProblem::Yaml(format!("yaml: unmarshal errors:\n  {}", reader.duplicates.join("\n  ")).into()));
    Ok((value, problem))
}

fn failed(failure: Failure) -> DecodeError {
    DecodeError::Yaml(format!("yaml: {}", failure.0).into())
}

/// The first document as nodes, with anchors resolved to the node they name.
#[derive(Default)]
struct Document {
    nodes: Vec<Node>,
    root: Option<usize>,
}

struct Node {
    line: usize,
    kind: Kind,
}

enum Kind {
    Scalar(Scalar),
    Sequence(Vec<usize>),
    /// Keys and values in turn.
    Mapping(Vec<usize>),
    Alias(usize, Box<str>),
}

fn parse(text: &str) -> Result<Document, Failure> {
    directives::check_count(text)?;
    let mut events = Events::new(text)?;
    let mut document = Document::default();
    let mut anchors: HashMap<String, usize> = HashMap::new();
    // The collections that are still open, innermost last.
    let mut open: Vec<usize> = Vec::new();
    loop {
        let event = events.next_event()?;
        let (kind, anchor, opens) = match event.content {
            Content::Boundary => continue,
            Content::DocumentEnd | Content::End => return Ok(document),
            Content::Close => {
                open.pop();
                continue;
            }
            Content::Alias(name) => match anchors.get(&name) {
                Some(target) => (Kind::Alias(*target, name.into()), None, false),
                None => return Err(Failure(format!("unknown anchor '{name}' referenced"))),
            },
            Content::Scalar(scalar, anchor) => (Kind::Scalar(scalar), anchor, false),
            Content::Sequence(anchor) => (Kind::Sequence(Vec::new()), anchor, true),
            Content::Mapping(anchor) => (Kind::Mapping(Vec::new()), anchor, true),
        };
        let at = document.nodes.len();
        document.nodes.push(Node { line: event.line, kind });
        if let Some(anchor) = anchor {
            anchors.insert(anchor, at);
        }
        match open.last() {
            None => document.root = document.root.or(Some(at)),
            Some(parent) => match &mut document.nodes[*parent].kind {
                Kind::Sequence(children) | Kind::Mapping(children) => children.push(at),
                _ => {}
            },
        }
        if opens {
            if open.len() >= MAX_DEPTH {
                return Err(Failure(format!("line {}: exceeded max depth of {MAX_DEPTH}", event.line)));
            }
            open.push(at);
        }
    }
}

#[derive(Default)]
struct Reader {
    duplicates: Vec<String>,
    /// The nodes that are being read through an alias.
    within: Vec<usize>,
    read: usize,
    read_through_aliases: usize,
    /// The length of all scalars that were read through an alias.
    aliased_bytes: usize,
    depth: usize,
}

impl Reader {
    fn value(&mut self, document: &Document, at: usize) -> Result<Value, Failure> {
        self.count()?;
        let node = &document.nodes[at];
        match &node.kind {
            Kind::Scalar(scalar) => {
                self.count_aliased_bytes(scalar.text.len())?;
                scalar.resolve()
            }
            Kind::Alias(target, name) => self.through_alias(*target, name, |reader| reader.value(document, *target)),
            Kind::Sequence(children) => {
                self.descend(|reader| children.iter().map(|child| reader.value(document, *child)).collect())
            }
            Kind::Mapping(children) => self.descend(|reader| {
                let mut found = Fields::default();
                reader.fields(document, children, &mut found)?;
                Ok(Value::Object(found.map))
            }),
        }
    }

    fn fields(&mut self, document: &Document, children: &[usize], found: &mut Fields) -> Result<(), Failure> {
        for pair in children.chunks_exact(2) {
            let (key, value) = (&document.nodes[pair[0]], pair[1]);
            if matches!(&key.kind, Kind::Scalar(scalar) if scalar.is_merge()) {
                self.merge(document, value, found)?;
                continue;
            }
            let (name, shown) = self.key(document, pair[0])?;
            let read = self.value(document, value)?;
            if found.insert(name, shown.clone(), read) {
                self.duplicates.push(format!("line {}: key {shown} already set in map", document.nodes[value].line));
            }
        }
        Ok(())
    }

    /// A key as text, and as printed in messages.
    fn key(&mut self, document: &Document, at: usize) -> Result<(String, String), Failure> {
        let unsupported = |kind: &str| Failure(format!("unsupported map key of type: {kind}"));
        match self.value(document, at)? {
            Value::String(text) => {
                let shown = quoted(&text);
                Ok((text, shown))
            }
            Value::Bool(flag) => Ok((flag.to_string(), flag.to_string())),
            Value::Number(number) => Ok((number.to_string(), number.to_string())),
            Value::Null => Err(unsupported("%!s(<nil>)")),
            Value::Array(_) | Value::Object(_) => Err(Failure("invalid map key".to_owned())),
        }
    }

    fn merge(&mut self, document: &Document, at: usize, found: &mut Fields) -> Result<(), Failure> {
        match &document.nodes[at].kind {
            Kind::Mapping(children) => {
                self.count()?;
                self.descend(|reader| reader.fields(document, children, found))
            }
            Kind::Alias(target, name) => match &document.nodes[*target].kind {
                Kind::Mapping(_) => {
                    self.count()?;
                    self.through_alias(*target, name, |reader| reader.merge(document, *target, found))
                }
                _ => Err(not_mergeable()),
            },
            Kind::Sequence(children) => {
                // The first one has precedence, so it is merged last.
                for child in children.iter().rev() {
                    if matches!(document.nodes[*child].kind, Kind::Sequence(_)) {
                        return Err(not_mergeable());
                    }
                    self.merge(document, *child, found)?;
                }
                Ok(())
            }
            Kind::Scalar(_) => Err(not_mergeable()),
        }
    }

    fn through_alias<T>(
        &mut self,
        target: usize,
        name: &str,
        read: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.within.contains(&target) {
            return Err(Failure(format!("anchor '{name}' value contains itself")));
        }
        self.within.push(target);
        let outcome = read(self);
        self.within.pop();
        outcome
    }

    fn descend<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        if self.depth >= MAX_DEPTH {
            return Err(Failure(format!("exceeded max depth of {MAX_DEPTH}")));
        }
        self.depth += 1;
        let outcome = read(self);
        self.depth -= 1;
        outcome
    }

    /// Refuses small documents that expand into huge ones.
    fn count(&mut self) -> Result<(), Failure> {
        const SMALL: f64 = 400_000.0;
        const LARGE: f64 = 4_000_000.0;
        self.read += 1;
        self.read_through_aliases += usize::from(!self.within.is_empty());
        let read = self.read as f64;
        let allowed = 0.99 - 0.89 * ((read - SMALL) / (LARGE - SMALL)).clamp(0.0, 1.0);
        if self.read > 1_000 && self.read_through_aliases > 100 && self.read_through_aliases as f64 / read > allowed {
            return Err(excessive_aliasing());
        }
        Ok(())
    }

    /// Refuses long texts that are repeated through many aliases.
    fn count_aliased_bytes(&mut self, length: usize) -> Result<(), Failure> {
        if !self.within.is_empty() {
            self.aliased_bytes += length;
        }
        if self.aliased_bytes > MAX_ALIASED_BYTES { Err(excessive_aliasing()) } else { Ok(()) }
    }
}

fn excessive_aliasing() -> Failure {
    Failure("document contains excessive aliasing".to_owned())
}

fn not_mergeable() -> Failure {
    Failure("map merge requires map or sequence of maps as the value".to_owned())
}

#[derive(Default)]
struct Fields {
    map: Map<String, Value>,
    /// The keys as written: `1` and `"1"` are different keys in YAML, but not in JSON.
    shown: HashMap<String, ()>,
}

impl Fields {
    /// Sets a field and returns whether it was set before; the last value wins.
    fn insert(&mut self, name: String, shown: String, value: Value) -> bool {
        let again = match self.shown.entry(shown) {
            Entry::Occupied(_) => true,
            Entry::Vacant(free) => {
                free.insert(());
                false
            }
        };
        self.map.insert(name, value);
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Result<Value, String> {
        read(text.as_bytes()).map(|(value, _)| value).map_err(|error| error.to_string())
    }

    #[test]
    fn words_and_numbers_are_those_of_yaml_1_1() {
        let text = "a: yes\nb: 'yes'\nc: 0777\nd: 0x1F\ne: 1_000\nf: 2026-01-02\ng: ~\nh:\ni: 1.50\nj: .5\nk: off\n\
            l: 1e3\nm: 12:30\nz: !!str 5\no: \"\"\np: 0o17\nq: 0b11\nr: -0b11\n1: one\ntrue: t\n";
        assert_eq!(
            value(text),
            Ok(json!({"a": true, "b": "yes", "c": 511, "d": 31, "e": 1000, "f": "2026-01-02", "g": null, "h": null,
                "i": 1.5, "j": 0.5, "k": false, "l": 1000, "m": "12:30", "z": "5", "o": "", "p": 15, "q": 3, "r": -3,
                "1": "one", "true": "t"}))
        );
    }

    #[test]
    fn structure_anchors_and_merges_are_read() {
        let text = "base: &b {x: 1, z: [a, b]}\nuse:\n  <<: *b\n  x: 2\nlist:\n- *b\n- |\n  text\n  more\n";
        assert_eq!(
            value(text),
            Ok(json!({"base": {"x": 1, "z": ["a", "b"]}, "use": {"x": 2, "z": ["a", "b"]},
                "list": [{"x": 1, "z": ["a", "b"]}, "text\nmore\n"]}))
        );
        assert_eq!(value(""), Ok(Value::Null));
        assert_eq!(value("---\na: 1\n---\nb: 2\n"), Ok(json!({"a": 1})));
    }

    #[test]
    fn keys_given_twice_are_noted_with_their_line() {
        let (value, problem) = read(b"a: 1\nb:\n  c: 1\n  c: 2\na: 3\n").expect("YAML");
        assert_eq!(value, json!({"a": 3, "b": {"c": 2}}));
        assert_eq!(
            problem.expect("problem").to_string(),
            "yaml: unmarshal errors:\n  line 4: key \"c\" already set in map\n  line 5: key \"a\" already set in map"
        );
    }

    #[test]
    fn invalid_yaml_gets_the_messages_of_kubernetes() {
        for (text, expected) in [
            ("a: b: c", "yaml: mapping values are not allowed in this context"),
            ("a: 1\nb: c: d", "yaml: line 2: mapping values are not allowed in this context"),
            ("a: *x", "yaml: unknown anchor 'x' referenced"),
            ("a: &a [*a]", "yaml: anchor 'a' value contains itself"),
            ("a: [1", "yaml: line 1: did not find expected ',' or ']'"),
            ("a:\n\t- b", "yaml: line 2: found character that cannot start any token"),
        ] {
            assert_eq!(value(text), Err(expected.to_owned()), "{text:?}");
        }
        assert!(value(&"[".repeat(20_000)).is_err());
        let bomb = (1..40).fold("a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, at| {
            let before = format!("*a{},", at - 1).repeat(9);
            format!("{text}a{at}: &a{at} [{before}]\n")
        });
        assert_eq!(value(&bomb), Err("yaml: document contains excessive aliasing".to_owned()));
    }
}
