//! Evaluation of expressions.

use super::ast::{Kind, Macro, MacroName, Node};
use super::cost::{Meter, searching};
use super::error::EvaluateError;
use super::functions;
use super::message::Message;
use super::range::{Pair, Pairs, pairs};
use super::signatures::is_library;
use super::value::Value;
use super::weight::weigh;
use std::cmp::Ordering;
use std::sync::Arc;

pub(super) type Outcome<'a> = Result<Value<'a>, EvaluateError>;

/// Evaluates expressions over variables, up to a cost limit.
pub(super) struct Evaluator<'a> {
    /// Innermost last.
    variables: Vec<(&'a str, Value<'a>)>,
    pub meter: Meter,
}

impl<'a> Evaluator<'a> {
    /// An evaluator with these variables, up to a cost limit.
    pub fn new(variables: Vec<(&'a str, Value<'a>)>, limit: u64) -> Self {
        Evaluator { variables, meter: Meter::new(limit) }
    }

    /// The value of an expression.
    pub fn evaluate(&mut self, node: &'a Node) -> Outcome<'a> {
        match &node.kind {
            Kind::Null => Ok(Value::Null),
            Kind::Bool(flag) => Ok(Value::Bool(*flag)),
            Kind::Int(number) => Ok(Value::Int(*number)),
            Kind::Uint(number) => Ok(Value::Uint(*number)),
            Kind::Double(number) => Ok(Value::Double(*number)),
            Kind::Text(text) => Ok(Value::text(text.as_str())),
            Kind::Bytes(bytes) => Ok(Value::Bytes(bytes.clone())),
            Kind::Name(name) => self.name(name),
            Kind::Select { operand, field, optional } => self.select(operand, field, *optional),
            Kind::Has { operand, field } => {
                let operand = self.evaluate(operand)?;
                self.meter.spend(searching(Some(&operand)) - 1)?;
                self.has(&operand, field)
            }
            Kind::Call { function, target, arguments } => self.call(function, target.as_deref(), arguments),
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Message { name, fields } => self.message(name, fields),
            Kind::Macro(all) => self.unfold(all),
            Kind::Bind { name, value, body } => {
                let value = self.evaluate(value)?;
                self.with(&[(name, value)], |evaluator| evaluator.evaluate(body))
            }
        }
    }

    fn name(&mut self, name: &'a str) -> Outcome<'a> {
        self.meter.spend(1)?;
        if let Some((_, value)) = self.variables.iter().rev().find(|(other, _)| *other == name) {
            let value = value.clone();
            // Bytes are shared, a message is copied.
            if let Value::Unfit(_) = value {
                self.meter.spend_read(&value)?;
            }
            return fit(value);
        }
        let kind = match name {
            "bool" | "int" | "uint" | "double" | "string" | "bytes" | "list" | "map" | "null_type" | "type" => name,
            _ => return Err(EvaluateError::new(format!("no such attribute(s): {name}"))),
        };
        Ok(Value::Type(kind.to_owned().into()))
    }

    fn select(&mut self, operand: &'a Node, field: &'a str, optional: bool) -> Outcome<'a> {
        let operand = self.evaluate(operand)?;
        self.meter.spend(searching(Some(&operand)))?;
        match operand {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => Ok(self.read(&inner, field)?.map_or(Value::Optional(None), Value::some)),
            Value::JsonMap(..) | Value::Map(_) | Value::MapOfMaps(_) => match (self.read(&operand, field)?, optional) {
                (Some(value), true) => fit(value).map(Value::some),
                (None, true) => Ok(Value::Optional(None)),
                (Some(value), false) => fit(value),
                (None, false) => Err(EvaluateError::new(format!("no such key: {field}"))),
            },
            Value::Message(message) => match (message.field(field), optional) {
                (Some(value), true) => Ok(Value::some(value)),
                (None, true) => Ok(Value::Optional(None)),
                (Some(value), false) => Ok(value),
                (None, false) => Err(EvaluateError::new(format!("no such key: {field}"))),
            },
            Value::Authorizer(authorizer) if field == "requestResource" => {
                Ok(Value::Authorizer(Arc::new(authorizer.of_request())))
            }
            _ => Err(EvaluateError::no_such_overload()),
        }
    }

    fn message(&mut self, name: &'a str, fields: &'a [(String, Node, bool)]) -> Outcome<'a> {
        self.meter.spend(40 + literal(fields.len()))?;
        let mut made = Vec::with_capacity(fields.len());
        for (field, value, optional) in fields {
            match (self.evaluate(value)?, optional) {
                (Value::Optional(None), true) => {}
                (Value::Optional(Some(inner)), true) => made.push((field.as_str(), (*inner).clone())),
                (value, _) => made.push((field.as_str(), value)),
            }
        }
        Ok(Value::Message(Arc::new(Message { name, fields: made })))
    }

    /// The field of a map.
    fn read(&mut self, map: &Value<'a>, field: &str) -> Result<Option<Value<'a>>, EvaluateError> {
        let value = map.field(field);
        value.iter().try_for_each(|value| self.meter.spend_read(value))?;
        Ok(value)
    }

    fn has(&mut self, operand: &Value<'a>, field: &str) -> Outcome<'a> {
        match operand {
            Value::Optional(None) => Ok(Value::Bool(false)),
            Value::Optional(Some(inner)) => Ok(Value::Bool(self.read(inner, field)?.is_some())),
            Value::Message(message) => Ok(Value::Bool(message.field(field).is_some())),
            Value::JsonMap(..) | Value::Map(_) | Value::MapOfMaps(_) => match self.read(operand, field)? {
                Some(value) => fit(value).map(|_| Value::Bool(true)),
                None => Ok(Value::Bool(false)),
            },
            _ => Err(EvaluateError::no_such_overload()),
        }
    }

    fn call(&mut self, function: &'a str, target: Option<&'a Node>, arguments: &'a [Node]) -> Outcome<'a> {
        match (function, arguments) {
            ("_&&_", [left, right]) => return self.junction(left, right, false),
            ("_||_", [left, right]) => return self.junction(left, right, true),
            ("_?_:_", [condition, then, otherwise]) => {
                return match self.evaluate(condition)? {
                    Value::Bool(true) => self.evaluate(then),
                    Value::Bool(false) => self.evaluate(otherwise),
                    _ => Err(EvaluateError::no_such_overload()),
                };
            }
            _ => {}
        }
        let mut values = Vec::with_capacity(arguments.len() + 1);
        let mut library = None;
        if let Some(target) = target {
            match &target.kind {
                Kind::Name(name) if is_library(name) && !self.variables.iter().any(|(other, _)| other == name) => {
                    library = Some(format!("{name}.{function}"));
                }
                _ => values.push(self.evaluate(target)?),
            }
        }
        // The alternative of an optional is evaluated only if it is needed.
        if let (Some(Value::Optional(Some(inner))), "orValue" | "or") = (values.first(), function) {
            return Ok(if function == "or" { values[0].clone() } else { (**inner).clone() });
        }
        for argument in arguments {
            values.push(self.evaluate(argument)?);
        }
        let function = library.as_deref().unwrap_or(function);
        self.meter.spend_call(function, &values)?;
        let value = functions::call(function, &values)?;
        if matches!(function, "_[_]" | "_[?_]") {
            self.meter.spend_read(&value)?;
        }
        fit(value)
    }

    /// `&&` and `||`: either side can decide the result, even if the other fails.
    fn junction(&mut self, left: &'a Node, right: &'a Node, decisive: bool) -> Outcome<'a> {
        let left = self.evaluate(left);
        if matches!(left, Err(EvaluateError::TooExpensive)) || matches!(left, Ok(Value::Bool(flag)) if flag == decisive)
        {
            return left;
        }
        let right = self.evaluate(right);
        match (left, right) {
            (_, Err(EvaluateError::TooExpensive)) => Err(EvaluateError::TooExpensive),
            (_, Ok(Value::Bool(flag))) if flag == decisive => Ok(Value::Bool(decisive)),
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => Ok(Value::Bool(!decisive)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => Err(EvaluateError::no_such_overload()),
        }
    }

    fn list(&mut self, elements: &'a [(Node, bool)]) -> Outcome<'a> {
        self.meter.spend(10 + literal(elements.len()))?;
        let mut items = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            match (self.evaluate(element)?, optional) {
                (Value::Optional(inner), true) => items.extend(inner.map(|inner| (*inner).clone())),
                (value, _) => items.push(value),
            }
        }
        Ok(Value::list(items))
    }

    fn map(&mut self, entries: &'a [(Node, Node, bool)]) -> Outcome<'a> {
        // Each key is compared with those before it.
        let count = entries.len() as u64;
        self.meter.spend(30 + literal(entries.len()) + count * count / 100)?;
        let mut made: Vec<(Value<'a>, Value<'a>)> = Vec::with_capacity(entries.len());
        for (key, value, optional) in entries {
            let key = self.evaluate(key)?;
            let value = match (self.evaluate(value)?, optional) {
                (Value::Optional(None), true) => continue,
                (Value::Optional(Some(inner)), true) => (*inner).clone(),
                (value, _) => value,
            };
            insert(&mut made, key, value)?;
        }
        Ok(Value::Map(Arc::new(made)))
    }

    fn with<T>(
        &mut self,
        variables: &[(&'a str, Value<'a>)],
        then: impl FnOnce(&mut Self) -> Result<T, EvaluateError>,
    ) -> Result<T, EvaluateError> {
        let before = self.variables.len();
        self.variables.extend(variables.iter().cloned());
        let outcome = then(self);
        self.variables.truncate(before);
        outcome
    }

    fn unfold(&mut self, all: &'a Macro) -> Outcome<'a> {
        let range = self.evaluate(&all.range)?;
        self.meter.spend(1)?;
        if let MacroName::OptionalMap | MacroName::OptionalFlatMap = all.name {
            let Value::Optional(inner) = range else { return Err(EvaluateError::no_such_overload()) };
            let Some(inner) = inner else { return Ok(Value::Optional(None)) };
            let variable = (all.variables.0.as_str(), (*inner).clone());
            let value = self.with(&[variable], |evaluator| evaluator.evaluate(&all.body))?;
            return Ok(if all.name == MacroName::OptionalMap { Value::some(value) } else { value });
        }
        let pairs = pairs(range, all.variables.1.is_some()).ok_or_else(EvaluateError::no_such_overload)?;
        match all.name {
            MacroName::All => self.quantify(all, pairs, false),
            MacroName::Exists => self.quantify(all, pairs, true),
            MacroName::ExistsOne => {
                let mut count = 0;
                for pair in pairs {
                    count += usize::from(self.test(all, pair, &all.body)?);
                }
                Ok(Value::Bool(count == 1))
            }
            MacroName::Filter => {
                let mut kept = Vec::new();
                for pair in pairs {
                    let element = pair.0.clone();
                    if self.test(all, pair, &all.body)? {
                        kept.push(element);
                    }
                }
                Ok(Value::list(kept))
            }
            MacroName::SortBy => self.sort_by(all, pairs),
            _ => self.transform(all, pairs),
        }
    }

    /// `all` and `exists`: one element can decide the result, even if others fail.
    fn quantify(&mut self, all: &'a Macro, pairs: Pairs<'a>, decisive: bool) -> Outcome<'a> {
        let mut failure = None;
        for pair in pairs {
            match self.test(all, pair, &all.body) {
                Ok(flag) if flag == decisive => return Ok(Value::Bool(decisive)),
                Ok(_) => {}
                Err(EvaluateError::TooExpensive) => return Err(EvaluateError::TooExpensive),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn test(&mut self, all: &'a Macro, pair: Pair<'a>, body: &'a Node) -> Result<bool, EvaluateError> {
        match self.within(all, pair, body)? {
            Value::Bool(flag) => Ok(flag),
            _ => Err(EvaluateError::no_such_overload()),
        }
    }

    fn within(&mut self, all: &'a Macro, (first, second): Pair<'a>, body: &'a Node) -> Outcome<'a> {
        self.meter.spend(1)?;
        for value in [Some(&first), second.as_ref()].into_iter().flatten() {
            self.meter.spend_read(value)?;
        }
        let mut variables = vec![(all.variables.0.as_str(), first)];
        if let (Some(name), Some(value)) = (&all.variables.1, second) {
            variables.push((name, value));
        }
        self.with(&variables, |evaluator| evaluator.evaluate(body))
    }

    fn transform(&mut self, all: &'a Macro, pairs: Pairs<'a>) -> Outcome<'a> {
        let mut items = Vec::new();
        let mut entries = Vec::new();
        for pair in pairs {
            if let Some(filter) = &all.filter
                && !self.test(all, pair.clone(), filter)?
            {
                continue;
            }
            let key = pair.0.clone();
            let value = self.within(all, pair, &all.body)?;
            // A new key is compared with all before it.
            self.meter.spend(entries.len() as u64 / 10)?;
            match all.name {
                MacroName::TransformMap => insert(&mut entries, key, value)?,
                MacroName::TransformMapEntry => {
                    let made = value.entries().ok_or_else(EvaluateError::no_such_overload)?;
                    for (key, value) in made.iter() {
                        insert(&mut entries, key.clone(), value.clone())?;
                    }
                }
                _ => items.push(value),
            }
        }
        Ok(match all.name {
            MacroName::TransformMap | MacroName::TransformMapEntry => Value::Map(Arc::new(entries)),
            _ => Value::list(items),
        })
    }

    fn sort_by(&mut self, all: &'a Macro, pairs: Pairs<'a>) -> Outcome<'a> {
        let mut keyed = Vec::new();
        for pair in pairs {
            let element = pair.0.clone();
            let key = self.within(all, pair, &all.body)?;
            // Keys are as long as the expression makes them, and are compared with each other.
            self.meter.spend(weigh(&key).ok_or(EvaluateError::TooExpensive)? / 10)?;
            keyed.push((key, element));
        }
        let mut failure = None;
        keyed.sort_by(|(a, _), (b, _)| {
            a.compare(b).unwrap_or_else(|error| {
                failure = Some(error);
                Ordering::Equal
            })
        });
        failure.map_or_else(|| Ok(Value::list(keyed.into_iter().map(|(_, element)| element).collect())), Err)
    }
}

/// The cost of the elements of a literal beyond its first ones: constants cost nothing to evaluate, but are copied.
fn literal(count: usize) -> u64 {
    count as u64 / 4
}

/// Fails if a value does not match its schema.
fn fit(value: Value<'_>) -> Outcome<'_> {
    match value {
        Value::Unfit(problem) => Err(EvaluateError::new(&*problem)),
        value => Ok(value),
    }
}

fn insert<'a>(
    entries: &mut Vec<(Value<'a>, Value<'a>)>,
    key: Value<'a>,
    value: Value<'a>,
) -> Result<(), EvaluateError> {
    if !matches!(key, Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::String(_)) {
        return Err(EvaluateError::new(format!("unsupported key type: {}", key.type_name())));
    }
    if entries.iter().any(|(other, _)| other.equals(&key)) {
        return Err(EvaluateError::new(format!("Failed with repeated key: {}", functions::format_value(&key))));
    }
    entries.push((key, value));
    Ok(())
}
