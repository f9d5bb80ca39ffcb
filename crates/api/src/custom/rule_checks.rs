//! Checks of the validation rules in a definition: that they compile and that their estimated cost is low enough.

use super::described::Described;
use crate::cel::{Program, Type};
use crate::field::{Error, ErrorType, Errors, Path, quoted};
use crate::json_schema::{AdditionalProperties, JsonSchemaProps, ValidationRule};
use serde_json::Value;

/// The limits of the estimated cost of one rule and of all rules of a schema together.
const RULE_LIMIT: u64 = 10_000_000;
const SCHEMA_LIMIT: u64 = 100_000_000;

/// The largest request body.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// Checks the rules of a version's `openAPIV3Schema`, which must be valid otherwise.
pub fn check_rules(path: &Path<'_>, open_api_schema: &Value) -> Errors {
    let mut checks = Checks { errors: Errors::new(), total: 0, expensive: Vec::new() };
    checks.check(
        &JsonSchemaProps::read(open_api_schema),
        path,
        Place { is_root: true, occurrences: Some(1), uncorrelated: None },
    );
    checks.check_total(path);
    checks.errors
}

/// The position of a schema within its root schema.
#[derive(Clone)]
struct Place {
    is_root: bool,
    /// The maximum number of such values in one object, or none if it is unlimited.
    occurrences: Option<u64>,
    /// The enclosing list whose elements before and after an update cannot be correlated.
    uncorrelated: Option<String>,
}

struct Checks {
    errors: Errors,
    total: u64,
    /// The most expensive rules, with their paths.
    expensive: Vec<(u64, String)>,
}

impl Checks {
    fn check(&mut self, props: &JsonSchemaProps, path: &Path<'_>, place: Place) {
        let occurrences = place.occurrences.and_then(|count| Some(count.saturating_mul(elements(props)?)));
        let below = Place { is_root: false, occurrences, uncorrelated: place.uncorrelated.clone() };
        if let Some(schema) = props.additional_schema() {
            self.check(schema, &path.child("additionalProperties"), below.clone());
        }
        let properties = path.child("properties");
        for (name, property) in &props.properties {
            self.check(property, &properties.key(name), below.clone());
        }
        if let Some(items) = props.items.as_deref() {
            let keyed = props.list_type.as_deref() == Some("map");
            let uncorrelated = below.uncorrelated.clone().or_else(|| (!keyed).then(|| path.to_string()));
            self.check(items, &path.child("items"), Place { uncorrelated, ..below });
        }
        let rules = path.child("x-kubernetes-validations");
        let described = Described::new(props, place.is_root || props.embedded);
        for (at, rule) in props.rules.iter().enumerate() {
            self.check_rule(rule, &described, &rules.index(at), &place);
        }
    }

    fn check_rule(&mut self, rule: &ValidationRule, described: &Described<'_>, path: &Path<'_>, place: &Place) {
        if rule.rule.trim().is_empty() {
            return;
        }
        let (props, variables) = (described.props, described.variables(rule));
        let occurrences = place.occurrences.unwrap_or_else(|| MAX_REQUEST / (described.smallest() + 1));
        let rule_path = path.child("rule");
        let program = match Program::compile(&rule.rule, &variables) {
            Ok(program) if matches!(program.kind(), Type::Bool | Type::Dyn) => program,
            Ok(_) => return self.invalid(&rule_path, rule, "cel expression must evaluate to a bool".to_owned()),
            Err(error) => return self.invalid(&rule_path, rule, format!("compilation failed: {error}")),
        };
        self.note_cost(program.highest_cost(props).saturating_mul(occurrences), "estimated rule cost", &rule_path);
        if !rule.message_expression.is_empty() {
            let message_path = path.child("messageExpression");
            match Program::compile(&rule.message_expression, &variables) {
                Ok(program) if matches!(program.kind(), Type::String | Type::Dyn) => {
                    self.note_cost(program.highest_cost(props), "estimated messageExpression cost", &message_path);
                }
                Ok(_) => self.invalid(&message_path, rule, "messageExpression must evaluate to a string".to_owned()),
                Err(error) => {
                    self.invalid(&message_path, rule, format!("messageExpression compilation failed: {error}"));
                }
            }
        }
        match (program.uses("oldSelf"), &place.uncorrelated, rule.optional_old_self) {
            (true, Some(within), _) => {
                let detail =
                    format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {within}");
                self.errors.invalid(&rule_path, rule.rule.as_str(), detail);
            }
            (false, _, Some(flag)) => {
                let detail = "may not be set if oldSelf is not used in rule";
                self.errors.invalid(&path.child("optionalOldSelf"), flag, detail);
            }
            _ => {}
        }
    }

    fn note_cost(&mut self, cost: u64, what: &str, path: &Path<'_>) {
        if cost > RULE_LIMIT {
            self.errors.forbidden(path, over_budget(what, cost, RULE_LIMIT));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= SCHEMA_LIMIT / 100 {
            self.expensive.push((cost, path.to_string()));
        }
    }

    fn check_total(&mut self, path: &Path<'_>) {
        if self.total <= SCHEMA_LIMIT {
            return;
        }
        self.expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, path) in self.expensive.iter().take(4) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.forbidden(&Path::root(path), detail);
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        self.errors.forbidden(path, over_budget(what, self.total, SCHEMA_LIMIT));
    }

    /// The whole rule as Kubernetes prints it, with the field names of its Go type.
    fn invalid(&mut self, path: &Path<'_>, rule: &ValidationRule, detail: String) {
        // Kubernetes escapes the characters that could end an HTML script.
        let text = |text: &str| {
            let shown = Value::from(text).to_string();
            shown.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
        };
        let reason = if rule.reason.is_empty() { "null".to_owned() } else { quoted(&rule.reason) };
        let optional = rule.optional_old_self.map_or("null".to_owned(), |flag| flag.to_string());
        let shown = format!(
            r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{reason},"FieldPath":{},"OptionalOldSelf":{optional}}}"#,
            text(&rule.rule),
            text(&rule.message),
            text(&rule.message_expression),
            text(&rule.field_path),
        );
        self.errors.push(Error {
            field: path.to_string(),
            error_type: ErrorType::Invalid,
            bad_value: Some(shown),
            detail,
        });
    }
}

/// The maximum number of values in an object or list, or none if it is unlimited.
fn elements(props: &JsonSchemaProps) -> Option<u64> {
    let limit = |limit: Option<i64>| limit.map(|limit| u64::try_from(limit).unwrap_or_default());
    match props.kind.as_str() {
        "object"
            if matches!(props.additional, Some(AdditionalProperties::Schema(_) | AdditionalProperties::Allowed(_))) =>
        {
            limit(props.max_properties)
        }
        "array" => limit(props.max_items),
        _ => Some(1),
    }
}

fn over_budget(what: &str, cost: u64, limit: u64) -> String {
    let times = cost as f64 / limit as f64;
    let factor = if times > 100.0 {
        "more than 100x".to_owned()
    } else if times < 1.5 {
        format!("{times:.6}x")
    } else {
        format!("{times:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(spec: Value) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        check_rules(&Path::root("s"), &schema).0.iter().map(Error::to_string).collect()
    }

    #[test]
    fn sound_rules_pass() {
        let spec = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.x + self.y > 0"},
                {"rule": "self.a.isSorted() && self.a.sum() % 2 == 0"}, {"rule": "self.l.all(x, self.l.all(y, y == x))"}],
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"},
                "a": {"type": "array", "maxItems": 1000, "items": {"type": "integer"}},
                "l": {"type": "array", "maxItems": 725, "items": {"type": "integer"}}}});
        assert_eq!(problems(spec), [""; 0]);
        // Words that are reserved elsewhere may stand after a dot, escaped or not.
        let spec = json!({"type": "object", "x-kubernetes-validations": [
                {"rule": "!has(self.namespace) || size(self.namespace) == 0"}, {"rule": "self.__namespace__ == self.if"}],
            "properties": {"namespace": {"type": "string"}, "if": {"type": "string"}}});
        assert_eq!(problems(spec), [""; 0]);
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let found = problems(json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.z == 100"}],
            "properties": {"x": {"type": "integer"}}}));
        assert_eq!(
            found,
            [
                "s.properties[spec].x-kubernetes-validations[0].rule: Invalid value: {\"Rule\":\"self.z == 100\",\"Message\":\"\",\
              \"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: compilation failed: \
              ERROR: <input>:1:5: undefined field 'z'\n | self.z == 100\n | ....^"
            ]
        );
        let found = problems(json!({"type": "object", "x-kubernetes-validations": [{"rule": "self = 42"}]}));
        assert!(found[0].contains("Syntax error"), "{found:?}");
        let found = problems(json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self + 1"}]}));
        assert!(found[0].ends_with("cel expression must evaluate to a bool"), "{found:?}");
        let found = problems(json!({"type": "array", "maxItems": 2, "items": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}));
        assert!(found[0].contains("oldSelf cannot be used on the uncorrelatable portion"), "{found:?}");
    }

    /// A rule of Karpenter's NodePool. No schema can limit the length of a key.
    #[test]
    fn keys_of_maps_may_be_searched() {
        let rule = "self.all(x, x in ['a.example', 'b.example'] || !x.find('^([^/]+)').endsWith('example'))";
        let labels = |limits: serde_json::Value| {
            let mut schema = json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": 63},
                "x-kubernetes-validations": [{"rule": rule}]});
            schema.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
            problems(schema)
        };
        assert_eq!(labels(json!({"maxProperties": 100})), [""; 0]);
        let values = json!({"type": "object", "maxProperties": 100, "additionalProperties": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "self.all(x, !self[x].find('^([^/]+)').endsWith('example'))"}]});
        assert!(problems(values)[0].contains("estimated rule cost exceeds budget"), "values can be limited");
    }

    /// As Kubernetes estimates them, rules like these over a hundred texts of any length are cheap enough.
    #[test]
    fn the_length_of_a_text_counts_only_where_it_is_read() {
        let texts = |rule: &str| {
            problems(json!({"type": "array", "maxItems": 100, "items": {"type": "string",
                "x-kubernetes-validations": [{"rule": rule}]}}))
        };
        for (rule, factor) in [
            ("isURL(self) && self.startsWith('https://')", None),
            ("isURL(self) || self.endsWith('.example.com')", None),
            ("self.startsWith('a') == isURL(self)", None),
            ("(isURL(self) ? self.startsWith('a') : self.endsWith('b')) ? size(self) > 1 : size(self) > 2", None),
            ("duration(self) < duration(self)", None),
            ("self in ['a', 'b']", None),
            ("matches(self, '^[a-z]+$')", Some("6.3x")),
            ("isSemver(self)", Some("3.1x")),
            ("self.split(',').size() > 1", Some("6.3x")),
            ("format.dns1123Label().validate(self).hasValue()", Some("10.1x")),
            ("url(self).getHost() == 'x'", Some("3.1x")),
            ("self + 'x' == 'y'", Some("3.1x")),
            ("isIP(self)", Some("3.1x")),
            ("self.indexOf('x') > 1", Some("3.1x")),
            ("self == 'x' ? isIP(self) : isCIDR(self)", Some("3.1x")),
            ("self.matches('abcd')", Some("3.1x")),
            ("self.replace('a', 'b') == 'b'", Some("6.3x")),
        ] {
            let found = texts(rule);
            match factor {
                None => assert_eq!(found, [""; 0], "{rule}"),
                Some(factor) => assert!(found.iter().any(|one| one.contains(factor)), "{rule}: {found:?}"),
            }
        }
    }

    #[test]
    fn comparing_numbers_for_equality_is_free() {
        let generation = |rule: &str| {
            let item = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"},
                "generation": {"type": "integer", "x-kubernetes-validations": [{"rule": rule}]}}});
            problems(json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": item}))
        };
        assert_eq!(generation("self >= oldSelf || (self == 0 && oldSelf > 0)"), [""; 0]);
        assert!(generation("self >= oldSelf || (self > 0 && oldSelf > 0)")[0].contains("1.101005x"));
    }

    #[test]
    fn objects_of_unknown_fields_can_be_present() {
        let spec = json!({"type": "object", "x-kubernetes-validations": [{"rule": "!has(self.any) || has(self.text)"}],
            "properties": {"text": {"type": "string"},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
        assert_eq!(problems(spec), [""; 0]);
        let spec = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.any.field == 'x'"}],
            "properties": {"any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
        assert!(problems(spec)[0].contains("undefined field 'field'"));
    }

    #[test]
    fn bytes_are_as_long_as_their_schema_says() {
        let count = |rule: &str| {
            problems(json!({"type": "string", "format": "byte", "maxLength": 8192,
                "x-kubernetes-validations": [{"rule": rule}]}))
        };
        assert_eq!(count("string(self).findAll('BEGIN').size() == string(self).findAll('END').size()"), [""; 0]);
    }

    /// Keys of maps have no length in the estimate, so that a pattern over many of them is cheap enough.
    #[test]
    fn a_pattern_over_keys_costs_by_its_own_length() {
        let rule = "self.all(key, size(key) < 63 && key.matches('^[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?$'))";
        let ports = json!({"type": "object", "maxProperties": 128, "additionalProperties": {"type": "integer"},
            "x-kubernetes-validations": [{"rule": rule}]});
        assert_eq!(problems(json!({"type": "array", "maxItems": 4096, "items": ports})), [""; 0]);
    }

    #[test]
    fn expensive_rules_are_refused() {
        let found = problems(json!({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "array",
            "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(s, s == 'string constant')"}]}}}}));
        assert!(found[0].contains("estimated rule cost exceeds budget by factor of more than 100x"), "{found:?}");
    }
}
