//! JSON Patch (RFC 6902): a list of operations, applied in order, all or none.

#[cfg(test)]
mod tests;

use super::PatchError;
use crate::decode::MAX_VALUE_DEPTH;
use crate::decode::{self, StrictProblem};
use crate::schema::{Field, List, ListKind, Node, Object, Schema, SchemaBuilder, Shape};
use crate::value::depth;
use serde_json::Value;
use std::sync::LazyLock;

/// The maximum number of operations.
pub const MAX_OPERATIONS: usize = 10_000;

/// A decoded patch.
#[derive(Debug)]
pub struct JsonPatch {
    operations: Vec<Operation>,
    /// The problems that strict field validation reports.
    pub problems: Vec<StrictProblem>,
}

#[derive(Debug)]
enum Operation {
    Add(Pointer, Value),
    Remove(Pointer),
    Replace(Pointer, Value),
    Move {
        from: Pointer,
        to: Pointer,
    },
    Copy {
        from: Pointer,
        to: Pointer,
    },
    Test(Pointer, Value),
    Unknown(String),
    /// An operation that lacks a required field.
    Incomplete(&'static str),
}

type Pointer = Vec<String>;

/// The schema of operations, so that errors and unknown fields are reported as for any object.
static OPERATIONS: LazyLock<Schema> = LazyLock::new(|| {
    let mut builder = SchemaBuilder::default();
    let text = builder.push(Node::new(Shape::String, "string"));
    let any = builder.push(Node::new(Shape::Any, "interface {}"));
    let fields =
        [("op", text), ("path", text), ("from", text), ("value", any)].map(|(name, node)| Field::new(name, node));
    let object = Shape::Object(Object::from_fields(fields.into(), Vec::new()));
    let element = builder.push(Node::new(object, "handlers.jsonPatchOp"));
    builder.name_root(
        Node::new(Shape::List(List { element, kind: ListKind::Atomic, declared: false }), "[]handlers.jsonPatchOp"),
        "patch",
    );
    builder.finish()
});

impl JsonPatch {
    /// Decodes a patch by the schema of patches, and reports strict problems.
    pub fn read(bytes: &[u8]) -> Result<Self, PatchError> {
        let Some(node) = OPERATIONS.node_named("patch") else {
            return Err(PatchError::Internal("the schema of patches is missing".into()));
        };
        let problems = decode::json(bytes, node).map_err(malformed)?.problems;
        Self::from_document(decode::untyped_json(bytes).map_err(malformed)?.value, problems)
    }

    /// Decodes a patch without strict validation; invalid operations fail when they are applied.
    pub fn read_leniently(bytes: &[u8]) -> Result<Self, PatchError> {
        let document = decode::untyped_json(bytes).map_err(malformed)?.value;
        let mistyped = match &document {
            Value::Array(items) => {
                items.iter().find(|item| !item.is_object() && !item.is_null()).map(|item| (item, "Operation"))
            }
            Value::Null => None,
            other => Some((other, "Patch")),
        };
        if let Some((found, wanted)) = mistyped {
            let found = crate::value::json_type(found);
            let message = format!("json: cannot unmarshal {found} into Go value of type jsonpatch.{wanted}");
            return Err(PatchError::Malformed(message.into()));
        }
        Self::from_document(document, Vec::new())
    }

    fn from_document(document: Value, problems: Vec<StrictProblem>) -> Result<Self, PatchError> {
        let items = document.as_array().map_or(&[][..], Vec::as_slice);
        if items.len() > MAX_OPERATIONS {
            return Err(PatchError::TooManyOperations(items.len()));
        }
        Ok(JsonPatch { operations: items.iter().map(read_operation).collect(), problems })
    }

    /// The paths of the operations, including those in `from`.
    pub fn pointers(&self) -> impl Iterator<Item = &[String]> {
        self.operations
            .iter()
            .flat_map(|operation| match operation {
                Operation::Add(to, _) | Operation::Remove(to) | Operation::Replace(to, _) | Operation::Test(to, _) => {
                    [Some(to.as_slice()), None]
                }
                Operation::Move { from, to } | Operation::Copy { from, to } => {
                    [Some(from.as_slice()), Some(to.as_slice())]
                }
                Operation::Unknown(_) | Operation::Incomplete(_) => [None, None],
            })
            .flatten()
    }

    /// Applies the operations. After an error the document is partly changed and must be dropped.
    pub fn apply(&self, document: &mut Value) -> Result<(), PatchError> {
        let mut limits = Limits::new(document);
        for operation in &self.operations {
            apply(document, operation, &mut limits).map_err(|message| PatchError::Unprocessable(message.into()))?;
        }
        Ok(())
    }
}

fn malformed(error: decode::DecodeError) -> PatchError {
    PatchError::Malformed(error.to_string().into())
}

fn read_operation(item: &Value) -> Operation {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    let Some(to) = text("path").and_then(read_pointer) else {
        return Operation::Incomplete("missing or wrong path");
    };
    let from = || text("from").and_then(read_pointer);
    let value = || item.get("value").cloned();
    let complete = match text("op").unwrap_or_default() {
        "add" => Some(Operation::Add(to, value().unwrap_or(Value::Null))),
        "remove" => Some(Operation::Remove(to)),
        "replace" => Some(Operation::Replace(to, value().unwrap_or(Value::Null))),
        "move" => from().map(|from| Operation::Move { from, to }),
        "copy" => from().map(|from| Operation::Copy { from, to }),
        "test" => Some(Operation::Test(to, value().unwrap_or(Value::Null))),
        other => Some(Operation::Unknown(other.to_owned())),
    };
    complete.unwrap_or(Operation::Incomplete("missing or wrong from"))
}

fn read_pointer(text: &str) -> Option<Pointer> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let parts = text.strip_prefix('/')?.split('/');
    Some(parts.map(|part| part.replace("~1", "/").replace("~0", "~")).collect())
}

/// The maximum number of bytes that the copies of a patch may add: copies of copies double each time.
const COPY_LIMIT: usize = 3 * 1024 * 1024;

/// The maximum number of values that one patch may visit to measure depths, or shift within lists. Only patches that move
/// values down hundreds of times, or insert thousands at the start of long lists, need it at all.
const MEASURE_LIMIT: usize = 200_000_000;

/// The limits of all operations of one patch together.
struct Limits {
    /// The bytes that copies added so far.
    copied: usize,
    /// The document nests at most this deep.
    deepest: usize,
    /// The number of values that may still be visited or shifted.
    measurable: usize,
}

impl Limits {
    fn new(document: &Value) -> Self {
        let mut measurable = MEASURE_LIMIT;
        let deepest = depth(document, &mut measurable).unwrap_or(usize::MAX);
        Limits { copied: 0, deepest, measurable }
    }

    /// Refuses a value that would make the document nest too deep at `path`: every later step recurses into the document.
    fn check_depth(&mut self, path: &[String], value: &Value) -> Result<(), String> {
        let deepest = path.len().saturating_add(self.measure(value)?);
        if deepest > MAX_VALUE_DEPTH {
            return Err(too_deep());
        }
        self.deepest = self.deepest.max(deepest);
        Ok(())
    }

    /// The same for a value that was taken out of the document at `from`. It is measured only where it might be too deep,
    /// since a patch may move a large value thousands of times.
    fn check_moved_depth(&mut self, rest: &Value, from: &[String], to: &[String], value: &Value) -> Result<(), String> {
        let possible = self.deepest.saturating_sub(from.len()).saturating_add(to.len());
        if possible > MAX_VALUE_DEPTH {
            self.deepest = self.measure(rest)?;
            return self.check_depth(to, value);
        }
        self.deepest = self.deepest.max(possible);
        Ok(())
    }

    /// Counts the values that an insertion or removal at `path` shifts, if that is in a list.
    fn check_shift(&mut self, document: &mut Value, path: &[String]) -> Result<(), String> {
        let Some((last, parents)) = path.split_last() else { return Ok(()) };
        let Some(Value::Array(items)) = find_mut(document, parents) else { return Ok(()) };
        let shifted = items.len() - place(last, items.len()).unwrap_or(items.len());
        let left = self.measurable.checked_sub(shifted);
        self.measurable = left.ok_or("the operations of the patch shift too many values within lists")?;
        Ok(())
    }

    fn measure(&mut self, value: &Value) -> Result<usize, String> {
        depth(value, &mut self.measurable).ok_or_else(too_deep)
    }
}

fn too_deep() -> String {
    "exceeded max depth".to_owned()
}

fn apply(document: &mut Value, operation: &Operation, limits: &mut Limits) -> Result<(), String> {
    match operation {
        Operation::Add(path, value) => {
            limits.check_depth(path, value)?;
            limits.check_shift(document, path)?;
            add(document, path, value.clone())
        }
        Operation::Remove(path) => {
            limits.check_shift(document, path)?;
            remove(document, path).map(drop)
        }
        Operation::Replace(path, value) => {
            limits.check_depth(path, value)?;
            // An absent field of an existing object is added.
            if let Some((last, parents)) = path.split_last()
                && let Some(Value::Object(fields)) = find_mut(document, parents)
            {
                fields.insert(last.clone(), value.clone());
                return Ok(());
            }
            let target = find_mut(document, path).ok_or_else(|| missing("replace", path))?;
            *target = value.clone();
            Ok(())
        }
        Operation::Move { from, to } => {
            limits.check_shift(document, from)?;
            let value = remove(document, from)?;
            limits.check_moved_depth(document, from, to, &value)?;
            limits.check_shift(document, to)?;
            add(document, to, value)
        }
        Operation::Copy { from, to } => {
            // An absent field of an existing parent is copied as null.
            let (last, parents) = from.split_last().ok_or_else(|| missing("copy", from))?;
            let value = match find_mut(document, parents).ok_or_else(|| missing("copy", from))? {
                Value::Object(fields) => fields.get(last).unwrap_or(&Value::Null),
                parent => find_mut(parent, std::slice::from_ref(last)).ok_or_else(|| missing("copy", from))?,
            };
            limits.copied += size(value);
            if limits.copied > COPY_LIMIT {
                return Err(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {COPY_LIMIT}",
                    limits.copied
                ));
            }
            limits.check_depth(to, value)?;
            let value = value.clone();
            limits.check_shift(document, to)?;
            add(document, to, value)
        }
        Operation::Test(path, expected) => {
            let found = find_mut(document, path).map_or(&Value::Null, |value| value);
            if found == expected { Ok(()) } else { Err(format!("testing value {} failed", format_path(path))) }
        }
        Operation::Unknown(name) => Err(format!("Unexpected kind: {name}")),
        Operation::Incomplete(what) => Err((*what).to_owned()),
    }
}

/// The length of a value as JSON.
fn size(value: &Value) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Counting cannot fail, and every value has a JSON form.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

fn add(document: &mut Value, path: &[String], value: Value) -> Result<(), String> {
    let (last, parents) = path.split_last().ok_or_else(|| missing("add", path))?;
    match find_mut(document, parents).ok_or_else(|| missing("add", path))? {
        Value::Object(fields) => {
            fields.insert(last.clone(), value);
            Ok(())
        }
        Value::Array(items) => {
            // An element can be added after the last one, so there is one more index than elements.
            let at = if last == "-" { Some(items.len()) } else { place(last, items.len() + 1) };
            items.insert(at.ok_or_else(|| missing("add", path))?, value);
            Ok(())
        }
        _ => Err(missing("add", path)),
    }
}

fn remove(document: &mut Value, path: &[String]) -> Result<Value, String> {
    let (last, parents) = path.split_last().ok_or_else(|| missing("remove", path))?;
    let removed = match find_mut(document, parents) {
        Some(Value::Object(fields)) => fields.remove(last),
        Some(Value::Array(items)) => place(last, items.len()).map(|at| items.remove(at)),
        _ => None,
    };
    removed.ok_or_else(|| missing("remove", path))
}

fn find_mut<'a>(document: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(document, |value, part| match value {
        Value::Object(fields) => fields.get_mut(part),
        Value::Array(items) => {
            let at = place(part, items.len())?;
            items.get_mut(at)
        }
        _ => None,
    })
}

/// A place among `places`, counted from the end when negative.
fn place(text: &str, places: usize) -> Option<usize> {
    let number: i64 = text.parse().ok()?;
    let at = if number < 0 { number + i64::try_from(places).ok()? } else { number };
    usize::try_from(at).ok().filter(|at| *at < places)
}

fn missing(operation: &str, path: &[String]) -> String {
    format!("{operation} operation does not apply: doc is missing path: {}: missing value", format_path(path))
}

fn format_path(path: &[String]) -> String {
    path.iter().flat_map(|part| ["/", part]).collect()
}
