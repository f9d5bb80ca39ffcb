//! Estimate of the maximum cost of an expression, from the maximum size of its values.

use super::ast::{Kind, Macro, MacroName, Node};
use super::signatures;
use super::types::Type;
use crate::json_schema::JsonSchemaProps;

/// The maximum size of a value in a request.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// The maximum size of a value and of its elements.
#[derive(Clone, Debug)]
enum Size<'p> {
    /// A value of a schema.
    Of(&'p JsonSchemaProps),
    /// Any other value, with a maximum number of elements or characters.
    AtMost(u64),
}

/// The maximum cost of the expression if `self` and `oldSelf` are values of the schema.
pub(super) fn estimate(node: &Node, props: &JsonSchemaProps) -> u64 {
    let mut estimator = Estimator { variables: vec![("self", Size::Of(props)), ("oldSelf", Size::Of(props))] };
    estimator.cost(node).0
}

struct Estimator<'p> {
    variables: Vec<(&'p str, Size<'p>)>,
}

impl<'p> Estimator<'p> {
    /// The maximum cost of evaluation and size of the result.
    fn cost(&mut self, node: &'p Node) -> (u64, Size<'p>) {
        match &node.kind {
            Kind::Text(text) => (0, Size::AtMost(text.chars().count() as u64)),
            Kind::Bytes(bytes) => (0, Size::AtMost(bytes.len() as u64)),
            Kind::Name(name) => {
                let found = self.variables.iter().rev().find(|(other, _)| other == name);
                (1, found.map_or(Size::AtMost(1), |(_, size)| size.clone()))
            }
            Kind::Select { operand, field, .. } => {
                let (cost, size) = self.cost(operand);
                (cost.saturating_add(1), size.field(field))
            }
            Kind::Has { operand, .. } => (self.cost(operand).0, Size::AtMost(1)),
            Kind::Call { function, target, arguments } => self.call(function, target.as_deref(), arguments),
            Kind::List(elements) => {
                let cost = elements.iter().fold(10u64, |sum, (element, _)| sum.saturating_add(self.cost(element).0));
                (cost, Size::AtMost(elements.len() as u64))
            }
            Kind::Map(entries) => {
                let cost = entries.iter().fold(30u64, |sum, (key, value, _)| {
                    sum.saturating_add(self.cost(key).0).saturating_add(self.cost(value).0)
                });
                (cost, Size::AtMost(entries.len() as u64))
            }
            Kind::Message { fields, .. } => {
                let cost = fields.iter().fold(40u64, |sum, (_, value, _)| sum.saturating_add(self.cost(value).0));
                (cost, Size::AtMost(fields.len() as u64))
            }
            Kind::Macro(all) => self.unfold(all),
            Kind::Bind { name, value, body } => {
                let (cost, size) = self.cost(value);
                self.variables.push((name, size));
                let (body, size) = self.cost(body);
                self.variables.pop();
                (cost.saturating_add(body), size)
            }
            _ => (0, Size::AtMost(1)),
        }
    }

    fn call(&mut self, function: &str, target: Option<&'p Node>, arguments: &'p [Node]) -> (u64, Size<'p>) {
        let (costs, sizes): (Vec<u64>, Vec<Size>) =
            target.into_iter().chain(arguments).map(|node| self.cost(node)).unzip();
        let cost = match (function, costs.as_slice()) {
            // Only one of the branches is evaluated.
            ("_?_:_", [condition, one, other]) => condition.saturating_add(*one.max(other)),
            _ => costs.iter().fold(0u64, |sum, cost| sum.saturating_add(*cost)),
        };
        let count = |at: usize| sizes.get(at).map_or(1, Size::count);
        let tenth = |size: u64| size.div_ceil(10).max(1);
        // The total size of a list of texts.
        let together = || sizes.first().map_or(1, |list| list.count().saturating_mul(list.element().count()));
        let own = match function {
            "join" => tenth(together()),
            "_&&_" | "_||_" | "_?_:_" => 0,
            "matches" | "find" | "findAll" => {
                tenth(count(0).saturating_add(1)).saturating_mul(count(1).div_ceil(4).max(1))
            }
            "contains" => tenth(count(0)).saturating_mul(tenth(count(1))),
            // No more is read of a text than what it is compared with.
            "startsWith" | "endsWith" => tenth(count(1)),
            // The text is read, and as much is written.
            "replace" | "split" => tenth(count(0).saturating_mul(2)),
            // isURL is not among them: Kubernetes has no estimate for it, so it costs 1.
            "lowerAscii" | "upperAscii" | "trim" | "substring" | "format" | "quantity" | "url" | "isQuantity"
            | "semver" | "isSemver" | "ip" | "isIP" | "cidr" | "isCIDR" => tenth(count(0)),
            // A format is estimated as a pattern of 128 characters.
            "validate" => tenth(count(1)).saturating_mul(32),
            "string" if sizes.first().is_some_and(Size::is_bytes) => tenth(count(0)),
            "@in" => count(1),
            "indexOf" | "lastIndexOf" if sizes.first().is_some_and(|size| size.is("string")) => tenth(count(0)),
            "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" | "distinct" | "sort" => count(0),
            "sets.contains" | "sets.equivalent" | "sets.intersects" => count(0).saturating_mul(count(1)),
            // Nothing, if one is a number, boolean or object of the schema.
            "_==_" | "_!=_" => count(0).min(count(1)).div_ceil(10),
            "_<_" | "_<=_" | "_>_" | "_>=_" => tenth(count(0).min(count(1))),
            "_+_" if sizes.iter().any(|size| size.is("array")) => 1,
            "_+_" => tenth(count(0).saturating_add(count(1))),
            _ => 1,
        };
        let size = match (function, sizes.first()) {
            ("_[_]" | "_[?_]", Some(container)) => container.element(),
            ("_?_:_", _) => Size::AtMost(count(1).max(count(2))),
            ("join", _) => Size::AtMost(together()),
            ("_+_", _) => Size::AtMost(count(0).saturating_add(count(1))),
            ("string", Some(first)) if first.is_bytes() => Size::AtMost(first.count()),
            // The length of such a text is unknown.
            ("string", _) => Size::AtMost(u64::MAX),
            _ if returns_scalar(function) => Size::AtMost(1),
            (_, Some(first)) => Size::AtMost(first.count()),
            _ => Size::AtMost(1),
        };
        (cost.saturating_add(own), size)
    }

    fn unfold(&mut self, all: &'p Macro) -> (u64, Size<'p>) {
        let (range_cost, range) = self.cost(&all.range);
        let count = match all.name {
            MacroName::OptionalMap | MacroName::OptionalFlatMap => 1,
            _ => range.count(),
        };
        let before = self.variables.len();
        match &all.variables {
            (name, None) => self.variables.push((name, range.key_or_element())),
            (name, Some(second)) => {
                self.variables.push((name, Size::AtMost(range.key_or_element().count())));
                self.variables.push((second, range.element()));
            }
        }
        let filter = all.filter.as_ref().map_or(0, |filter| self.cost(filter).0);
        let (body, _) = self.cost(&all.body);
        self.variables.truncate(before);
        let each = body.saturating_add(filter).saturating_add(1);
        (range_cost.saturating_add(1).saturating_add(count.saturating_mul(each)), Size::AtMost(count))
    }
}

/// Whether a function returns a number, a time or a boolean, which have the size 1 whatever the size of the arguments.
fn returns_scalar(function: &str) -> bool {
    let is_scalar = |kind: &Type| {
        matches!(kind, Type::Bool | Type::Int | Type::Uint | Type::Double | Type::Duration | Type::Timestamp)
    };
    let known = signatures::of(function);
    !known.is_empty() && known.iter().all(|signature| is_scalar(&signature.result))
}

impl<'p> Size<'p> {
    /// Whether this is a value of a schema of this type.
    fn is(&self, kind: &str) -> bool {
        matches!(self, Size::Of(props) if props.kind == kind)
    }

    fn is_bytes(&self) -> bool {
        matches!(self, Size::Of(props) if props.kind == "string" && props.format == "byte")
    }

    /// The maximum number of elements, entries or characters.
    fn count(&self) -> u64 {
        match self {
            Size::AtMost(count) => *count,
            Size::Of(props) => count_of(props),
        }
    }

    fn field(&self, name: &str) -> Size<'p> {
        match self {
            Size::Of(props) => props.child(&super::unescape(name)).map_or(Size::AtMost(1), Size::Of),
            Size::AtMost(_) => Size::AtMost(1),
        }
    }

    fn element(&self) -> Size<'p> {
        match self {
            Size::Of(props) => {
                props.items.as_deref().or_else(|| props.additional_schema()).map_or(Size::AtMost(1), Size::Of)
            }
            Size::AtMost(_) => Size::AtMost(1),
        }
    }

    /// The elements over which a macro with one variable iterates.
    fn key_or_element(&self) -> Size<'p> {
        match self {
            // No schema limits the keys of a map. Kubernetes' estimate leaves out their length for that reason: authors could
            // not make a rule over them any cheaper. What a rule really costs is counted when it is evaluated.
            Size::Of(props) if props.items.is_none() => Size::AtMost(0),
            other => other.element(),
        }
    }
}

fn count_of(props: &JsonSchemaProps) -> u64 {
    let stated = |limit: Option<i64>| limit.and_then(|limit| u64::try_from(limit).ok());
    match props.kind.as_str() {
        "string" => match (stated(props.max_length), props.format.as_str()) {
            (Some(limit), "byte") => limit.min(MAX_REQUEST),
            (Some(limit), _) => limit.saturating_mul(4).min(MAX_REQUEST),
            (None, "date") => 10,
            (None, "date-time") => 35,
            (None, "duration") => 128,
            (None, _) if !props.values.is_empty() => {
                props.values.iter().filter_map(serde_json::Value::as_str).map(str::len).max().unwrap_or(1) as u64
            }
            _ => MAX_REQUEST - 2,
        },
        "array" => {
            stated(props.max_items).unwrap_or_else(|| MAX_REQUEST / (props.items.as_deref().map_or(1, smallest) + 1))
        }
        "object" if props.properties.is_empty() => stated(props.max_properties)
            .unwrap_or_else(|| MAX_REQUEST / (props.additional_schema().map_or(2, smallest) + 6)),
        _ if props.int_or_string => stated(props.max_length).unwrap_or(MAX_REQUEST),
        _ => 0,
    }
}

/// The minimum number of bytes of a value in a request.
pub(crate) fn smallest(props: &JsonSchemaProps) -> u64 {
    match props.kind.as_str() {
        "string" => match props.format.as_str() {
            "date" => 12,
            "date-time" => 22,
            _ => 2,
        },
        "boolean" => 4,
        "object" => {
            let required = props.required.iter().filter_map(|name| Some((name, props.properties.get(name)?)));
            // A field with a default need not be in the request.
            let required = required.filter(|(_, property)| property.default.is_none());
            required.fold(2, |sum, (name, property)| sum + name.len() as u64 + 4 + smallest(property))
        }
        "array" => 2,
        _ => 1,
    }
}
