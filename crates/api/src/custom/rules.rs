//! Validation rules of custom resources (`x-kubernetes-validations`): compilation and evaluation.

use super::correlated::{CorrelatedElements, CorrelatedValue, KeyedElements};
use crate::cel::{EvaluateError, Program, Type, Value as CelValue};
use crate::field::{Error, ErrorType, Errors, Path};
use crate::json_schema::{JsonSchemaProps, ValidationRule};
use serde_json::Value;
use std::collections::BTreeMap;

/// The cost limit of one evaluation of a rule.
const CALL_LIMIT: u64 = 1_000_000;

/// The cost limit of all evaluations for one object together.
const OBJECT_BUDGET: i64 = 10_000_000;

/// The compiled rules of a schema, in the structure of the schema.
#[derive(Debug)]
pub(super) struct Rules {
    props: JsonSchemaProps,
    own: Vec<CompiledRule>,
    all_of: Vec<Rules>,
    properties: BTreeMap<String, Rules>,
    additional: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
}

#[derive(Debug)]
struct CompiledRule {
    rule: ValidationRule,
    program: Result<Program, String>,
    message: Option<Program>,
    uses_old: bool,
}

impl Rules {
    /// Compiles the rules of a schema, or returns none if it has no rules.
    pub fn compile(props: &JsonSchemaProps, is_resource: bool) -> Option<Self> {
        Self::compile_at(props, props, is_resource)
    }

    /// `holder` can be a junctor such as `allOf`, whose rules are about values that `props` describes.
    fn compile_at(holder: &JsonSchemaProps, props: &JsonSchemaProps, is_resource: bool) -> Option<Self> {
        let own: Vec<CompiledRule> =
            holder.rules.iter().map(|rule| CompiledRule::new(rule, props, is_resource)).collect();
        let mut properties = BTreeMap::new();
        for (name, property) in &holder.properties {
            if let Some(described) = props.properties.get(name)
                && let Some(rules) = Rules::compile_at(property, described, described.embedded)
            {
                properties.insert(name.clone(), rules);
            }
        }
        let within = |holder: Option<&JsonSchemaProps>, props: Option<&JsonSchemaProps>| {
            let (holder, props) = (holder?, props?);
            Rules::compile_at(holder, props, props.embedded).map(Box::new)
        };
        let additional = within(holder.additional_schema(), props.additional_schema());
        let items = within(holder.items.as_deref(), props.items.as_deref());
        let all_of: Vec<Rules> =
            holder.all_of.iter().filter_map(|nested| Rules::compile_at(nested, props, is_resource)).collect();
        let empty =
            own.is_empty() && properties.is_empty() && additional.is_none() && items.is_none() && all_of.is_empty();
        (!empty).then(|| Rules { props: props.clone(), own, all_of, properties, additional, items })
    }

    /// Checks an object against its rules; unchanged values are checked only against rules that use `oldSelf`.
    pub fn check(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let mut budget = OBJECT_BUDGET;
        let correlated = old.map(|old| CorrelatedValue::new(object, old, &self.props));
        let history = History { old, current: correlated, parent: None };
        self.check_at(object, history, &Path::default(), &mut budget, errors);
    }

    fn check_at(&self, value: &Value, history: History<'_>, path: &Path<'_>, budget: &mut i64, errors: &mut Errors) {
        if value.is_null() {
            return;
        }
        self.check_own(value, history, path, budget, errors);
        for rules in &self.all_of {
            if *budget < 0 {
                return;
            }
            let within = History { current: None, ..history };
            rules.check_at(value, within, path, budget, errors);
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if *budget < 0 {
                        return;
                    }
                    let below = history.field(name);
                    if let Some(rules) = self.properties.get(name) {
                        rules.check_at(value, below, &path.child(name), budget, errors);
                    } else if let Some(rules) = &self.additional {
                        rules.check_at(value, below, &path.key(name), budget, errors);
                    }
                }
            }
            Value::Array(items) => {
                let Some(rules) = &self.items else { return };
                let elements = history.elements(&self.props);
                for (at, item) in items.iter().enumerate() {
                    if *budget < 0 {
                        return;
                    }
                    rules.check_at(item, elements.at(at, item), &path.index(at), budget, errors);
                }
            }
            _ => {}
        }
    }

    fn check_own(&self, value: &Value, history: History<'_>, path: &Path<'_>, budget: &mut i64, errors: &mut Errors) {
        let kind = self.props.kind.as_str();
        for compiled in &self.own {
            let invalid = |detail: String| invalid_at(path, kind, detail);
            if *budget <= 0 {
                let detail =
                    "validation failed due to running out of cost budget, no further validation rules will be run";
                errors.push(invalid(detail.to_owned()));
                *budget = -1;
                return;
            }
            let program = match &compiled.program {
                Ok(program) => program,
                Err(message) => {
                    errors.push(invalid(format!("rule compile error: compilation failed: {message}")));
                    continue;
                }
            };
            let optional_old = compiled.rule.optional_old_self.unwrap_or_default();
            let old = history.old.filter(|old| !old.is_null());
            if compiled.uses_old && old.is_none() && !optional_old {
                continue;
            }
            let variables = || variables(value, old, optional_old, &self.props);
            let (outcome, cost) = program.evaluate(variables(), CALL_LIMIT);
            *budget -= i64::try_from(cost).unwrap_or(i64::MAX);
            match outcome {
                Ok(CelValue::Bool(true)) => continue,
                Ok(_) => {}
                Err(EvaluateError::TooExpensive) => {
                    errors.push(invalid(format!(
                        "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                        EvaluateError::TooExpensive,
                        compiled.rule_text()
                    )));
                    *budget = -1;
                    return;
                }
                Err(error) => {
                    let error = error.to_string();
                    errors.push(invalid(if error.starts_with("no such overload") {
                        format!(
                            "'{error}': call arguments did not match a supported operator, function or macro signature \
                             for rule: {}",
                            compiled.rule_text()
                        )
                    } else {
                        format!("{error} evaluating rule: {}", compiled.rule_text())
                    }));
                    continue;
                }
            }
            if !compiled.uses_old && history.is_unchanged() {
                continue;
            }
            let message = compiled.message.as_ref().and_then(|message| {
                let (outcome, cost) = message.evaluate(variables(), CALL_LIMIT);
                *budget -= i64::try_from(cost).unwrap_or(i64::MAX);
                message_text(outcome.ok()?)
            });
            errors.push(compiled.failure(value, kind, message, path));
        }
    }
}

/// The previous state of a value: the one that rules see as `oldSelf`, and the ones that decide whether it changed.
#[derive(Clone, Copy)]
struct History<'v> {
    old: Option<&'v Value>,
    current: Option<CorrelatedValue<'v>>,
    /// The nearest enclosing value that has a previous state.
    parent: Option<CorrelatedValue<'v>>,
}

impl<'v> History<'v> {
    fn field(self, name: &str) -> History<'v> {
        let old = self.old.and_then(|old| old.get(name));
        match self.current {
            None => History { old, ..self },
            Some(_) if self.parent.is_none() && matches!(name, "apiVersion" | "kind") => {
                History { old, current: None, parent: None }
            }
            Some(current) => History { old, current: current.field(name), parent: Some(current) },
        }
    }

    fn elements(self, list: &JsonSchemaProps) -> ElementHistories<'v> {
        ElementHistories {
            list: self,
            old: self.old.and_then(|old| KeyedElements::new(old, list)),
            current: self.current.and_then(|current| current.elements()),
        }
    }

    fn is_unchanged(self) -> bool {
        self.current.or(self.parent).is_some_and(|correlated| correlated.is_unchanged())
    }
}

/// The previous states of the elements of a list.
struct ElementHistories<'v> {
    list: History<'v>,
    old: Option<KeyedElements<'v>>,
    current: Option<CorrelatedElements<'v>>,
}

impl<'v> ElementHistories<'v> {
    fn at(&self, at: usize, item: &Value) -> History<'v> {
        let old = self.old.as_ref().and_then(|old| old.get(item));
        match self.list.current {
            None => History { old, ..self.list },
            Some(list) => {
                let current = self.current.as_ref().and_then(|elements| elements.at(at));
                History { old, current, parent: Some(list) }
            }
        }
    }
}

fn variables<'a>(
    value: &'a Value,
    old: Option<&'a Value>,
    optional_old: bool,
    props: &'a JsonSchemaProps,
) -> Vec<(&'static str, CelValue<'a>)> {
    let mut variables = vec![("self", CelValue::of_json(value, Some(props)))];
    let old = old.map(|old| CelValue::of_json(old, Some(props)));
    if optional_old {
        variables.push(("oldSelf", old.map_or(CelValue::Optional(None), CelValue::some)));
    } else if let Some(old) = old {
        variables.push(("oldSelf", old));
    }
    variables
}

impl CompiledRule {
    fn new(rule: &ValidationRule, props: &JsonSchemaProps, is_resource: bool) -> Self {
        let variables = declared(rule, props, is_resource);
        let program = Program::compile(&rule.rule, &variables).map_err(|error| error.to_string());
        let message = (!rule.message_expression.is_empty())
            .then(|| Program::compile(&rule.message_expression, &variables).ok())
            .flatten();
        let uses_old = program.as_ref().is_ok_and(|program| program.uses("oldSelf"));
        CompiledRule { rule: rule.clone(), program, message, uses_old }
    }

    /// The name of the rule in errors.
    fn rule_text(&self) -> &str {
        if self.rule.message.is_empty() { self.rule.rule.trim() } else { self.rule.message.trim() }
    }

    fn failure(&self, value: &Value, kind: &str, message: Option<String>, path: &Path<'_>) -> Error {
        let detail = message.unwrap_or_else(|| {
            let text = self.rule.message.trim();
            if text.is_empty() { format!("failed rule: {}", self.rule.rule.trim()) } else { text.to_owned() }
        });
        let field_path = self.rule.field_path.trim();
        let mut field = path.to_string();
        if !field_path.is_empty() {
            if field.is_empty() {
                field = field_path.trim_start_matches('.').to_owned();
            } else {
                field.push_str(field_path);
            }
        }
        let field = if field.is_empty() { "<nil>".to_owned() } else { field };
        let at = Path::root(&field);
        let mut errors = Errors::new();
        // Messages do not contain whole objects and lists.
        let whole = matches!(kind, "object" | "array");
        match self.rule.reason.as_str() {
            "FieldValueForbidden" => errors.forbidden(&at, detail),
            "FieldValueRequired" => errors.required(&at, detail),
            "FieldValueDuplicate" if whole => {
                errors.push(Error {
                    field: at.to_string(),
                    error_type: ErrorType::Duplicate,
                    bad_value: None,
                    detail: String::new(),
                });
            }
            "FieldValueDuplicate" => errors.duplicate(&at, value.clone()),
            _ if whole => {
                errors.push(Error { field: at.to_string(), error_type: ErrorType::Invalid, bad_value: None, detail });
            }
            _ => errors.invalid(&at, value.clone(), detail),
        }
        errors.0.pop().unwrap_or(Error {
            field: String::new(),
            error_type: ErrorType::Internal,
            bad_value: None,
            detail: String::new(),
        })
    }
}

/// The variables that a rule may use.
pub(super) fn declared(rule: &ValidationRule, props: &JsonSchemaProps, is_resource: bool) -> Vec<(String, Type)> {
    let own = Type::of_props(props, is_resource).unwrap_or(Type::Dyn);
    let old = match rule.optional_old_self {
        Some(true) => Type::Optional(own.clone().into()),
        _ => own.clone(),
    };
    vec![("self".to_owned(), own), ("oldSelf".to_owned(), old)]
}

fn message_text(value: CelValue<'_>) -> Option<String> {
    let CelValue::String(text) = value else { return None };
    let text = text.trim();
    let usable = !text.is_empty() && text.len() <= 5 * 1024 && !text.contains('\n');
    usable.then(|| text.to_owned())
}

fn invalid_at(path: &Path<'_>, shown: &str, detail: String) -> Error {
    let field = path.to_string();
    let field = if field.is_empty() { "<nil>".to_owned() } else { field };
    let mut errors = Errors::new();
    errors.invalid(&Path::root(&field), shown, detail);
    errors.0.pop().unwrap_or(Error { field, error_type: ErrorType::Internal, bad_value: None, detail: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(schema: &Value, object: Value, old: Option<Value>) -> Vec<String> {
        let props = JsonSchemaProps::read(schema);
        let rules = Rules::compile(&props, true).expect("rules");
        let mut errors = Errors::new();
        rules.check(&object, old.as_ref(), &mut errors);
        errors.0.iter().map(Error::to_string).collect()
    }

    #[test]
    fn objects_that_break_a_rule_are_invalid() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["oars"],
            "properties": {"oars": {"type": "integer"}, "name": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self.startsWith('s')", "messageExpression": "'not ' + self"}]},
                "cargo": {"type": "array", "items": {"type": "object", "properties": {"tons": {"type": "integer"}},
                    "x-kubernetes-validations": [{"rule": "self.tons < 10", "fieldPath": ".tons", "reason": "FieldValueForbidden",
                        "message": "too heavy"}]}}},
            "x-kubernetes-validations": [
                {"rule": "!has(self.cargo) || self.cargo.size() <= self.oars", "message": "too much cargo"},
                {"rule": "self.oars > 0"}]}}});
        let ship = |spec: Value| problems(&schema, json!({"spec": spec}), None);
        assert_eq!(ship(json!({"oars": 3})), [""; 0]);
        assert_eq!(
            ship(json!({"oars": 1, "cargo": [{"tons": 1}, {"tons": 2}]})),
            ["spec: Invalid value: too much cargo"]
        );
        assert_eq!(ship(json!({"oars": 0})), ["spec: Invalid value: failed rule: self.oars > 0"]);
        assert_eq!(ship(json!({"oars": 1, "name": "x"})), [r#"spec.name: Invalid value: "x": not x"#]);
        assert_eq!(ship(json!({"oars": 1, "cargo": [{"tons": 11}]})), ["spec.cargo[0].tons: Forbidden: too heavy"]);
        assert_eq!(
            ship(json!({"oars": 1, "cargo": [{}]})),
            [r#"spec.cargo[0]: Invalid value: "object": no such key: tons evaluating rule: too heavy"#]
        );
    }

    #[test]
    fn rules_compare_with_the_old_value() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self > oldSelf"}]}, "bad": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self > 5"}]}, "o": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "!oldSelf.hasValue() || self == oldSelf.value()", "optionalOldSelf": true}]}}});
        assert_eq!(problems(&schema, json!({"n": 1, "o": 3}), None), [""; 0]);
        assert_eq!(
            problems(&schema, json!({"n": 1}), Some(json!({"n": 2}))),
            ["n: Invalid value: 1: failed rule: self > oldSelf"]
        );
        assert_eq!(problems(&schema, json!({"bad": 1, "n": 3}), Some(json!({"bad": 1, "n": 2}))), [""; 0]);
        assert_eq!(problems(&schema, json!({"bad": 2}), Some(json!({"bad": 1}))).len(), 1);
        assert_eq!(problems(&schema, json!({"o": 4}), Some(json!({"o": 3}))).len(), 1);
    }

    #[test]
    fn expensive_rules_are_cut_off() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"l": {"type": "array",
            "items": {"type": "integer"}}}, "x-kubernetes-validations": [{"rule": "self.l.all(x, self.l.all(y, y == x))"}]}}});
        let found = problems(&schema, json!({"spec": {"l": vec![1; 725]}}), None);
        assert!(found[0].contains("call cost exceeds limit"), "{found:?}");
    }
}
