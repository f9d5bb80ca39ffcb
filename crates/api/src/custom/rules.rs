//! Validation rules of custom resources (`x-kubernetes-validations`): compilation and evaluation.

use super::correlated::CorrelatedValue;
use super::described::Described;
use super::history::History;
use crate::cel::{EvaluateError, Program, Value as CelValue};
use crate::field::{Error, ErrorType, Errors, Path};
use crate::json_schema::{JsonSchemaProps, ValidationRule};
use serde_json::Value;
use std::collections::BTreeMap;

/// The cost limit of one evaluation of a rule.
const CALL_LIMIT: u64 = 1_000_000;

/// The cost limit of all evaluations for one object together.
const OBJECT_BUDGET: i64 = 10_000_000;

/// The compiled rules of a schema, in the structure of the schema. It is checked together with the schema: a copy of each part
/// of it would take its length times its depth.
#[derive(Debug)]
pub(super) struct Rules {
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
        Self::compile_at(props, &Described::new(props, is_resource))
    }

    /// `holder` can be a junctor such as `allOf`, whose rules are about values that the schema describes.
    fn compile_at(holder: &JsonSchemaProps, described: &Described<'_>) -> Option<Self> {
        let props = described.props;
        let own: Vec<CompiledRule> = holder.rules.iter().map(|rule| CompiledRule::new(rule, described)).collect();
        let mut properties = BTreeMap::new();
        for (name, property) in &holder.properties {
            if let Some(described) = props.properties.get(name)
                && let Some(rules) = Rules::compile_at(property, &Described::new(described, described.embedded))
            {
                properties.insert(name.clone(), rules);
            }
        }
        let within = |holder: Option<&JsonSchemaProps>, props: Option<&JsonSchemaProps>| {
            let (holder, props) = (holder?, props?);
            Rules::compile_at(holder, &Described::new(props, props.embedded)).map(Box::new)
        };
        let additional = within(holder.additional_schema(), props.additional_schema());
        let items = within(holder.items.as_deref(), props.items.as_deref());
        let all_of: Vec<Rules> =
            holder.all_of.iter().filter_map(|nested| Rules::compile_at(nested, described)).collect();
        let empty =
            own.is_empty() && properties.is_empty() && additional.is_none() && items.is_none() && all_of.is_empty();
        (!empty).then_some(Rules { own, all_of, properties, additional, items })
    }

    /// Checks an object against its rules and the schema that they were compiled with; unchanged values are checked only
    /// against rules that use `oldSelf`.
    pub fn check(&self, props: &JsonSchemaProps, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let mut budget = OBJECT_BUDGET;
        let correlated = old.map(|old| CorrelatedValue::new(object, old, props));
        let history = History { old, current: correlated, parent: None };
        self.check_at(props, object, history, &Path::default(), &mut budget, errors);
    }

    fn check_at(
        &self,
        props: &JsonSchemaProps,
        value: &Value,
        history: History<'_>,
        path: &Path<'_>,
        budget: &mut i64,
        errors: &mut Errors,
    ) {
        if value.is_null() {
            return;
        }
        self.check_own(props, value, history, path, budget, errors);
        for rules in &self.all_of {
            if *budget < 0 {
                return;
            }
            let within = History { current: None, ..history };
            rules.check_at(props, value, within, path, budget, errors);
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if *budget < 0 {
                        return;
                    }
                    let below = history.field(name);
                    if let (Some(rules), Some(props)) = (self.properties.get(name), props.properties.get(name)) {
                        rules.check_at(props, value, below, &path.child(name), budget, errors);
                    } else if let (Some(rules), Some(props)) = (&self.additional, props.additional_schema()) {
                        rules.check_at(props, value, below, &path.key(name), budget, errors);
                    }
                }
            }
            Value::Array(items) => {
                let (Some(rules), Some(described)) = (&self.items, props.items.as_deref()) else { return };
                let elements = history.elements(props);
                for (at, item) in items.iter().enumerate() {
                    if *budget < 0 {
                        return;
                    }
                    rules.check_at(described, item, elements.at(at, item), &path.index(at), budget, errors);
                }
            }
            _ => {}
        }
    }

    fn check_own(
        &self,
        props: &JsonSchemaProps,
        value: &Value,
        history: History<'_>,
        path: &Path<'_>,
        budget: &mut i64,
        errors: &mut Errors,
    ) {
        let kind = props.kind.as_str();
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
            let variables = || variables(value, old, optional_old, props);
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
    fn new(rule: &ValidationRule, described: &Described<'_>) -> Self {
        let variables = described.variables(rule);
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
        rules.check(&props, &object, old.as_ref(), &mut errors);
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

    /// Neither with the depth of the schema nor with the number of rules, of which each would have a copy of it.
    #[test]
    fn large_schemas_are_compiled_in_proportion() {
        let fields: serde_json::Map<String, Value> = (0..20_000).map(|at| (format!("f{at}"), json!({}))).collect();
        let mut wide = json!({"type": "object", "properties": fields});
        wide["properties"]["x"] =
            json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1", "message": "no"}]});
        let deep = (0..240).fold(wide.clone(), |inner, _| json!({"type": "object", "properties": {"a": inner}}));
        wide["x-kubernetes-validations"] = vec![json!({"rule": "self.x > 2"}); 2_000].into();
        wide["allOf"] = vec![json!({"x-kubernetes-validations": [{"rule": "self.x > 2"}]}); 2_000].into();
        let start = std::time::Instant::now();
        let object = (0..240).fold(json!({"x": 1}), |inner, _| json!({"a": inner}));
        let path = format!("{}x", "a.".repeat(240));
        assert_eq!(problems(&deep, object, None), [format!("{path}: Invalid value: 1: no")]);
        assert_eq!(problems(&wide, json!({"x": 2}), None).len(), 4_000);
        assert_eq!(crate::custom::check_rules(&Path::root("s"), &wide).0.len(), 0);
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
