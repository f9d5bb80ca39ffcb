//! The type checker.

use super::ast::{Kind, Macro, MacroName, Node};
use super::authorizer::{AUTHORIZER, RESOURCE_CHECK};
use super::error::Problem;
use super::signatures::{self, is_library};
use super::types::Type;
use std::collections::HashMap;
use std::sync::Arc;

/// Determines the type of an expression and collects problems.
pub(super) fn check(node: &Node, variables: &[(String, Type)]) -> (Type, Vec<Problem>) {
    let mut checker = Checker { variables: variables.to_vec(), problems: Vec::new() };
    let kind = checker.check(node);
    (kind, checker.problems)
}

struct Checker {
    /// Innermost last.
    variables: Vec<(String, Type)>,
    problems: Vec<Problem>,
}

impl Checker {
    /// Records a problem and continues with the type `dyn`.
    fn problem(&mut self, at: usize, message: String) -> Type {
        self.problems.push(Problem { at, message });
        Type::Dyn
    }

    fn check(&mut self, node: &Node) -> Type {
        match &node.kind {
            Kind::Null => Type::Null,
            Kind::Bool(_) => Type::Bool,
            Kind::Int(_) => Type::Int,
            Kind::Uint(_) => Type::Uint,
            Kind::Double(_) => Type::Double,
            Kind::Text(_) => Type::String,
            Kind::Bytes(_) => Type::Bytes,
            Kind::Name(name) => self.name(name, node.at),
            Kind::Select { operand, field, optional } => {
                let operand = self.check(operand);
                let kind = self.field(&operand, field, node.at);
                match (optional, operand) {
                    (true, operand) if !matches!(operand, Type::Optional(_)) => Type::Optional(Arc::new(kind)),
                    _ => kind,
                }
            }
            Kind::Has { operand, field } => {
                let operand = self.check(operand);
                self.field(&operand, field, node.at);
                Type::Bool
            }
            Kind::Call { function, target, arguments } => self.call(node, function, target.as_deref(), arguments),
            Kind::List(elements) => {
                let kinds: Vec<(Type, usize)> =
                    elements.iter().map(|(element, optional)| (self.element(element, *optional), element.at)).collect();
                Type::list(self.common(kinds))
            }
            Kind::Map(entries) => {
                let mut keys = Vec::new();
                let mut values = Vec::new();
                for (key, value, optional) in entries {
                    keys.push((self.check(key), key.at));
                    values.push((self.element(value, *optional), value.at));
                }
                Type::map(self.common(keys), self.common(values))
            }
            Kind::Macro(all) => self.unfold(all),
            Kind::Message { name, fields } => self.message(name, fields, node.at),
            Kind::Bind { name, value, body } => {
                let kind = self.check(value);
                self.with(vec![(name.clone(), kind)], |checker| checker.check(body))
            }
        }
    }

    fn element(&mut self, node: &Node, optional: bool) -> Type {
        match (self.check(node), optional) {
            (Type::Optional(inner), true) => (*inner).clone(),
            (kind, _) => kind,
        }
    }

    /// The common type of all.
    fn common(&mut self, kinds: Vec<(Type, usize)>) -> Type {
        let mut common: Option<Type> = None;
        for (kind, at) in kinds {
            match &common {
                None | Some(Type::Dyn | Type::Null) => common = Some(kind),
                Some(known) if fits(&mut HashMap::new(), known, &kind) => {}
                Some(known) => {
                    let message = format!("expected type '{known}' but found '{kind}'");
                    self.problem(at, message);
                }
            }
        }
        common.unwrap_or(Type::Dyn)
    }

    fn name(&mut self, name: &str, at: usize) -> Type {
        if let Some((_, kind)) = self.variables.iter().rev().find(|(other, _)| other == name) {
            return kind.clone();
        }
        match name {
            "bool" | "int" | "uint" | "double" | "string" | "bytes" | "list" | "map" | "null_type" | "type" => {
                Type::Type
            }
            _ => self.problem(at, format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn field(&mut self, operand: &Type, field: &str, at: usize) -> Type {
        match operand {
            Type::Dyn => Type::Dyn,
            Type::Map(_, value) => (**value).clone(),
            Type::Object(object) => match object.field(field) {
                Some(kind) => kind.clone(),
                None => self.problem(at, format!("undefined field '{field}'")),
            },
            Type::Optional(inner) => {
                let kind = self.field(inner, field, at);
                if matches!(kind, Type::Optional(_)) { kind } else { Type::Optional(Arc::new(kind)) }
            }
            Type::Message(name) if &**name == "JSONPatch" => self.patch_field(field, at),
            Type::Message(_) => Type::Dyn,
            Type::Opaque(AUTHORIZER) if field == "requestResource" => Type::Opaque(RESOURCE_CHECK),
            other => self.problem(at, format!("type '{other}' does not support field selection")),
        }
    }

    /// The type of `name{fields}`. Such types are declared as variables of the type's first name.
    fn message(&mut self, name: &str, fields: &[(String, Node, bool)], at: usize) -> Type {
        let first = name.split('.').next().unwrap_or(name);
        let declared = self.variables.iter().any(|(other, kind)| {
            other == first && matches!(kind, Type::Message(kind) if &**kind == name || first == "Object")
        });
        for (field, value, optional) in fields {
            let found = self.element(value, *optional);
            if declared && name == "JSONPatch" {
                let expected = self.patch_field(field, value.at);
                if !fits(&mut HashMap::new(), &expected, &found) {
                    let message =
                        format!("expected type of field '{field}' is '{expected}' but provided type is '{found}'");
                    self.problem(value.at, message);
                }
            }
        }
        if declared {
            return Type::Message(name.into());
        }
        self.problem(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn patch_field(&mut self, field: &str, at: usize) -> Type {
        match field {
            "op" | "path" | "from" => Type::String,
            "value" => Type::Dyn,
            _ => self.problem(at, format!("undefined field '{field}'")),
        }
    }

    fn call(&mut self, node: &Node, function: &str, target: Option<&Node>, arguments: &[Node]) -> Type {
        if let ("_?_:_", [condition, then, otherwise]) = (function, arguments) {
            let kind = self.check(condition);
            if !matches!(kind, Type::Bool | Type::Dyn) {
                let message = format!("found no matching overload for '_?_:_' applied to '({kind}, ...)'");
                self.problem(condition.at, message);
            }
            let kinds = vec![(self.check(then), then.at), (self.check(otherwise), otherwise.at)];
            return self.common(kinds);
        }
        let mut kinds = Vec::with_capacity(arguments.len() + 1);
        let mut name = function.to_owned();
        let mut has_receiver = false;
        if let Some(target) = target {
            match &target.kind {
                Kind::Name(library)
                    if is_library(library) && !self.variables.iter().any(|(other, _)| other == library) =>
                {
                    name = format!("{library}.{function}");
                }
                _ => {
                    kinds.push(self.check(target));
                    has_receiver = true;
                }
            }
        }
        for argument in arguments {
            kinds.push(match &argument.kind {
                // Format arguments may have any types.
                Kind::List(elements) if function == "format" => {
                    elements.iter().for_each(|(element, _)| drop(self.check(element)));
                    Type::list(Type::Dyn)
                }
                _ => self.check(argument),
            });
        }
        let known = signatures::of(&name);
        if known.is_empty() {
            return self.problem(node.at, format!("undeclared reference to '{name}' (in container '')"));
        }
        let mut results = known
            .iter()
            .filter(|signature| signature.has_receiver == has_receiver && signature.arguments.len() == kinds.len())
            .filter_map(|signature| {
                let mut bound = HashMap::new();
                let matches =
                    signature.arguments.iter().zip(&kinds).all(|(expected, found)| fits(&mut bound, expected, found));
                matches.then(|| substitute(&signature.result, &bound))
            });
        match results.next() {
            // If several match because a type is unknown, any of them may be meant.
            Some(first) => {
                results.try_fold(first, |first, other| (first == other).then_some(first)).unwrap_or(Type::Dyn)
            }
            None => {
                let shown = |kinds: &[Type]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let applied = match (has_receiver, kinds.split_first()) {
                    (true, Some((receiver, rest))) => format!("{receiver}.({})", shown(rest)),
                    _ => format!("({})", shown(&kinds)),
                };
                self.problem(node.at, format!("found no matching overload for '{name}' applied to '{applied}'"))
            }
        }
    }

    fn with<T>(&mut self, variables: Vec<(String, Type)>, then: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.variables.len();
        self.variables.extend(variables);
        let outcome = then(self);
        self.variables.truncate(before);
        outcome
    }

    fn unfold(&mut self, all: &Macro) -> Type {
        let range = self.check(&all.range);
        let (name, second) = &all.variables;
        let (key, element) = match &range {
            Type::Dyn => (Type::Dyn, Type::Dyn),
            Type::List(element) if second.is_some() => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Optional(inner) if matches!(all.name, MacroName::OptionalMap | MacroName::OptionalFlatMap) => {
                ((**inner).clone(), Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                (self.problem(all.range.at, message), Type::Dyn)
            }
        };
        let mut variables = vec![(name.clone(), key.clone())];
        variables.extend(second.clone().map(|second| (second, element)));
        let (filter, body) = self.with(variables, |checker| {
            (all.filter.as_ref().map(|filter| (checker.check(filter), filter.at)), checker.check(&all.body))
        });
        let tests = matches!(all.name, MacroName::All | MacroName::Exists | MacroName::ExistsOne | MacroName::Filter);
        let condition = if tests { Some((body.clone(), all.body.at)) } else { filter };
        if let Some((kind, at)) = condition
            && !matches!(kind, Type::Bool | Type::Dyn)
        {
            self.problem(at, format!("found no matching overload for '_&&_' applied to '(bool, {kind})'"));
        }
        match all.name {
            MacroName::All | MacroName::Exists | MacroName::ExistsOne => Type::Bool,
            MacroName::Filter => Type::list(key),
            MacroName::SortBy => range,
            MacroName::Map => Type::list(body),
            MacroName::TransformMap => Type::map(if matches!(range, Type::List(_)) { Type::Int } else { key }, body),
            MacroName::TransformMapEntry => body,
            MacroName::OptionalMap => Type::Optional(Arc::new(body)),
            MacroName::OptionalFlatMap => body,
        }
    }
}

/// Whether the found type is assignable to the expected one; binds type parameters.
fn fits(bound: &mut HashMap<char, Type>, expected: &Type, found: &Type) -> bool {
    match (expected, found) {
        (Type::Parameter('N'), found) => matches!(found, Type::Int | Type::Uint | Type::Double | Type::Dyn),
        (Type::Parameter(name), found) => match bound.get(name).cloned() {
            None | Some(Type::Dyn | Type::Null) => {
                bound.insert(*name, found.clone());
                true
            }
            Some(known) => fits(bound, &known, found),
        },
        (Type::Dyn, _) | (_, Type::Dyn) => true,
        (Type::Null, found) | (found, Type::Null) => {
            matches!(
                found,
                Type::Null
                    | Type::Object(_)
                    | Type::Message(_)
                    | Type::Optional(_)
                    | Type::Timestamp
                    | Type::Duration
                    | Type::Opaque(_)
            )
        }
        (Type::List(expected), Type::List(found)) | (Type::Optional(expected), Type::Optional(found)) => {
            fits(bound, expected, found)
        }
        (Type::Map(key, value), Type::Map(found_key, found_value)) => {
            fits(bound, key, found_key) && fits(bound, value, found_value)
        }
        (Type::Object(expected), Type::Object(found)) => Arc::ptr_eq(expected, found) || expected == found,
        _ => expected == found,
    }
}

fn substitute(kind: &Type, bound: &HashMap<char, Type>) -> Type {
    match kind {
        Type::Parameter(name) => bound.get(name).cloned().unwrap_or(Type::Dyn),
        Type::List(element) => Type::list(substitute(element, bound)),
        Type::Map(key, value) => Type::map(substitute(key, bound), substitute(value, bound)),
        Type::Optional(inner) => Type::Optional(Arc::new(substitute(inner, bound))),
        other => other.clone(),
    }
}
