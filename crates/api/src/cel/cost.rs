//! The cost of evaluation, which limits the time and memory of an expression.

use super::equality::is_unordered;
use super::error::EvaluateError;
use super::functions::{numbers_length, reads_list};
use super::value::Value;
use super::weight::{lesser, weigh};
use crate::json_schema::{JsonSchemaProps, size_recent};
use serde_json::Value as Json;

/// The cost of an access check.
const CHECK: u64 = 350_000;

/// Counts the cost, up to a limit.
#[derive(Debug)]
pub(super) struct Meter {
    pub spent: u64,
    limit: u64,
}

impl Meter {
    /// Nothing is spent yet.
    pub fn new(limit: u64) -> Self {
        Meter { spent: 0, limit }
    }

    /// Counts a cost; an error beyond the limit.
    pub fn spend(&mut self, cost: u64) -> Result<(), EvaluateError> {
        self.spent = self.spent.saturating_add(cost);
        if self.spent > self.limit { Err(EvaluateError::TooExpensive) } else { Ok(()) }
    }

    /// Functions that traverse a text or list cost by its size, and those that build one by the size of the result,
    /// which is charged before it is built.
    pub fn spend_call(&mut self, function: &str, values: &[Value<'_>]) -> Result<(), EvaluateError> {
        let size = |at: usize| values.get(at).and_then(Value::size).unwrap_or(1) as u64;
        // Without counting the characters of a long text that is compared with a short one.
        let extent = |at: usize| match values.get(at) {
            Some(Value::String(text)) => text.len() as u64,
            _ => size(at),
        };
        let weight = |at: usize| values.get(at).map_or(Some(0), weigh).ok_or(EvaluateError::TooExpensive);
        let lesser = |one: usize, other: usize, times: u64| match (values.get(one), values.get(other)) {
            (Some(one), Some(other)) => lesser(one, other, times).ok_or(EvaluateError::TooExpensive),
            _ => Ok(0),
        };
        let tenth = |size: u64| size.div_ceil(10);
        let cost = match function {
            // After each match, the search may read all of the text again.
            "findAll" => size(0)
                .saturating_add((1 + tenth(size(0))) * (1 + size(1).div_ceil(4)))
                .saturating_add(size(0).saturating_mul(size(0)) / 1000 + large(values)),
            "matches" | "find" => (1 + tenth(size(0))) * (1 + size(1).div_ceil(4)) + large(values),
            "contains" => tenth(size(0)) * tenth(size(1)).max(1),
            "startsWith"
            | "endsWith"
            | "lowerAscii"
            | "upperAscii"
            | "trim"
            | "substring"
            | "bytes"
            | "quantity"
            | "url"
            | "isURL"
            | "isQuantity"
            | "ip"
            | "isIP"
            | "cidr"
            | "isCIDR"
            | "charAt"
            | "first"
            | "last"
            | "string"
            | "strings.quote"
            | "jsonpatch.escapeKey"
            | "semver"
            | "isSemver" => tenth(size(0)).max(1),
            "getScheme" | "getHost" | "getHostname" | "getPort" | "getEscapedPath" | "getQuery" => {
                tenth(values.first().map_or(0, bytes)).max(1)
            }
            "reverse" if is_list(values) => size(0).div_ceil(2),
            "reverse" => tenth(size(0)).max(1),
            "replace" => tenth(size(0).saturating_add(replaced(values))).max(1),
            "split" => tenth(size(0)).saturating_add(pieces(values)).max(1),
            "join" => tenth(size(0).saturating_add(joined(values))).max(1),
            "format" => tenth(size(0).saturating_add(weight(1)?).saturating_add(numbers_length(values))).max(1),
            "check" => CHECK,
            "@in" => size(1).max(tenth(lesser(1, 0, size(1))?)),
            "isSorted" | "sum" | "min" | "max" | "sort" => size(0).max(tenth(weight(0)?)),
            "slice" => size(0),
            "indexOf" | "lastIndexOf" => size(0).max(tenth(weight(0)?)),
            "flatten" => size(0).max(tenth(weight(0)?)),
            "distinct" => size(0).saturating_mul(tenth(weight(0)?).max(1)),
            "lists.range" => match values.first() {
                Some(Value::Int(count)) => u64::try_from(*count).unwrap_or_default(),
                _ => 1,
            },
            "sets.contains" | "sets.equivalent" | "sets.intersects" if size(0) == 0 || size(1) == 0 => 0,
            "sets.contains" | "sets.equivalent" | "sets.intersects" => size(0)
                .saturating_mul(size(1))
                .max(size(0).saturating_mul(tenth(weight(1)?)))
                .max(size(1).saturating_mul(tenth(weight(0)?))),
            // Items are found by what is in them.
            "_+_" if values.first().is_some_and(is_unordered) => {
                size(0).saturating_add(size(1)).div_ceil(2).max(tenth(weight(0)?.saturating_add(weight(1)?)))
            }
            "_+_" if is_list(values) => size(0).saturating_add(size(1)).div_ceil(2).max(1),
            "_+_" => tenth(size(0).saturating_add(size(1))).max(1),
            // Both are read to compare lists in any order.
            "_==_" | "_!=_" if values.first().is_some_and(is_unordered) => tenth(weight(0)?.max(weight(1)?)).max(1),
            "_==_" | "_!=_" => tenth(extent(0).min(extent(1))).max(tenth(lesser(0, 1, 1)?)).max(1),
            "_<_" | "_<=_" | "_>_" | "_>=_" => tenth(extent(0).min(extent(1))).max(1),
            "_[_]" | "_[?_]" => searching(values.first()).saturating_mul(1 + values.get(1).map_or(0, bytes) / 100),
            // Conversions and checks read a text once.
            _ => 1 + values.iter().map(bytes).sum::<u64>() / 1000,
        };
        let reads_items = match function {
            "_==_" | "_!=_" => matches!(values, [one, other] if one.length() == other.length()),
            "@in" | "_+_" | "join" => true,
            _ => reads_list(function),
        };
        let decoded = if reads_items { values.iter().map(decoded_items).sum() } else { 0 };
        self.spend(cost.saturating_add(decoded))
    }

    /// What is in base64 in JSON is decoded whenever it is read, and what does not fit its schema is said in a message.
    pub fn spend_read(&mut self, value: &Value<'_>) -> Result<(), EvaluateError> {
        match value {
            Value::Bytes(bytes) => self.spend(bytes.len() as u64 / DECODED),
            Value::Unfit(problem) => self.spend(problem.len() as u64 / DECODED),
            Value::Optional(Some(inner)) => self.spend_read(inner),
            _ => Ok(()),
        }
    }
}

/// How many bytes are decoded for a cost of one.
const DECODED: u64 = 100;

/// What it costs to decode the items of a list or map of JSON, where a function reads them.
fn decoded_items(value: &Value<'_>) -> u64 {
    let is_encoded = |props: &JsonSchemaProps| props.kind == "string" && props.format == "byte";
    let length = |item: &Json| item.as_str().map_or(0, str::len) as u64;
    let total: u64 = match value {
        Value::JsonList(items, Some(props)) if props.items.as_deref().is_some_and(is_encoded) => {
            items.iter().map(length).sum()
        }
        Value::JsonMap(fields, Some(props)) => fields
            .iter()
            .filter(|(name, _)| props.child(name).is_some_and(is_encoded))
            .map(|(_, item)| length(item))
            .sum(),
        _ => 0,
    };
    total / DECODED
}

/// The cost of finding a key. Objects and small maps cost nothing beyond the lookup.
pub(super) fn searching(map: Option<&Value<'_>>) -> u64 {
    1 + map.map_or(0, Value::searched) as u64 / 32
}

/// The length of a text.
fn bytes(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Bytes(bytes) => bytes.len() as u64,
        Value::Url(url) => url.len() as u64,
        _ => 0,
    }
}

fn is_list(values: &[Value<'_>]) -> bool {
    matches!(values.first(), Some(Value::List(_) | Value::JsonList(..)))
}

/// The additional cost of a pattern that is much larger when compiled than as text, such as `\p{L}{1,100}`.
fn large(values: &[Value<'_>]) -> u64 {
    const USUAL: u64 = 64 << 10;
    const BYTES_PER_UNIT: u64 = 640;
    match values {
        [_, Value::String(pattern), ..] => size_recent(pattern).saturating_sub(USUAL) / BYTES_PER_UNIT,
        _ => 0,
    }
}

/// The maximum number of bytes that `replace` adds.
fn replaced(values: &[Value<'_>]) -> u64 {
    match values {
        [Value::String(text), Value::String(from), Value::String(to), ..] => {
            (text.matches(&**from).count() as u64).saturating_mul(to.len() as u64)
        }
        _ => 0,
    }
}

/// The maximum number of elements that `split` returns.
fn pieces(values: &[Value<'_>]) -> u64 {
    match values {
        [Value::String(text), Value::String(separator), ..] => text.matches(&**separator).count() as u64,
        _ => 0,
    }
}

/// The number of bytes that `join` returns.
fn joined(values: &[Value<'_>]) -> u64 {
    let [list, rest @ ..] = values else { return 0 };
    let separators = match rest {
        [Value::String(separator)] => (list.size().unwrap_or(0) as u64).saturating_mul(separator.len() as u64),
        _ => 0,
    };
    let texts: u64 = match list {
        Value::List(items) => items.iter().map(bytes).fold(0, u64::saturating_add),
        Value::JsonList(items, _) => items.iter().filter_map(|item| item.as_str()).map(|text| text.len() as u64).sum(),
        _ => 0,
    };
    texts.saturating_add(separators)
}
