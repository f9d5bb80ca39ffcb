//! Label selectors, from text and from `matchLabels` and `matchExpressions`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::{SelectorError, parse};
use crate::field::{Errors, Path, quoted};
use crate::names;
use crate::value::Read;

/// A label selector; all of its requirements must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    /// An absent selector object selects nothing, unlike an empty one.
    nothing: bool,
}

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The key of the label.
    pub key: String,
    /// How the label is compared.
    pub operator: Operator,
    /// Empty for [`Operator::Exists`] and [`Operator::DoesNotExist`], one for equality and order.
    pub values: Vec<String>,
}

/// How a label is compared with the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
    Exists,
    DoesNotExist,
}

impl Operator {
    /// The operator of a `matchExpressions` entry of a label selector.
    fn of_expression(name: &str) -> Result<Operator, SelectorError> {
        match name {
            "In" => Ok(Operator::In),
            "NotIn" => Ok(Operator::NotIn),
            "Exists" => Ok(Operator::Exists),
            "DoesNotExist" => Ok(Operator::DoesNotExist),
            _ => Err(SelectorError(format!("{} is not a valid label selector operator", quoted(name)))),
        }
    }

    /// Whether the operator with these values matches a label's value or absence.
    pub fn matches<'v>(self, mut values: impl Iterator<Item = &'v str>, value: Option<&str>) -> bool {
        let mut numbers = || Some((value?.parse::<i64>().ok()?, values.next()?.parse::<i64>().ok()?));
        match self {
            Operator::GreaterThan => numbers().is_some_and(|(label, limit)| label > limit),
            Operator::LessThan => numbers().is_some_and(|(label, limit)| label < limit),
            Operator::In | Operator::Equals | Operator::DoubleEquals => {
                value.is_some_and(|own| values.any(|each| each == own))
            }
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(|own| values.any(|each| each == own)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// The labels of an object, in whatever representation a component has them.
pub trait Labels {
    /// The value of a label.
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labels for Map<String, Value> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl Labels for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

/// An entry of `matchExpressions`.
pub struct Expression<'a> {
    /// The key of the label.
    pub key: &'a str,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: &'a str,
    /// What the label is compared with.
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Reads the text form, such as `app=web,tier in (front,back),!old`.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let mut requirements = parse::requirements(text)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { requirements, nothing: false })
    }

    /// Reads the object form with `matchLabels` and `matchExpressions`; null selects nothing, empty everything.
    pub fn from_object(selector: &Value) -> Result<LabelSelector, SelectorError> {
        if selector.is_null() {
            return Ok(LabelSelector::nothing());
        }
        let labels = selector.fields(&["matchLabels"]).into_iter().flatten();
        let labels = labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
        let expressions = selector.items(&["matchExpressions"]).iter().map(|expression| Expression {
            key: expression.text(&["key"]),
            operator: expression.text(&["operator"]),
            values: expression.items(&["values"]).iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        });
        LabelSelector::new(labels, expressions)
    }

    /// The selector of an object that has these `matchLabels` and `matchExpressions`.
    pub fn new<'a>(
        labels: impl Iterator<Item = (&'a str, &'a str)>,
        expressions: impl Iterator<Item = Expression<'a>>,
    ) -> Result<LabelSelector, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in labels {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.to_owned()])?);
        }
        for Expression { key, operator, values } in expressions {
            requirements.push(Requirement::new(key, Operator::of_expression(operator)?, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { requirements, nothing: false })
    }

    /// Matches objects with these labels, as the selectors of Services do. The labels are not validated.
    pub fn from_labels<K: AsRef<str>, V: AsRef<str>>(labels: impl IntoIterator<Item = (K, V)>) -> LabelSelector {
        let requirement = |(key, value): (K, V)| Requirement {
            key: key.as_ref().to_owned(),
            operator: Operator::Equals,
            values: vec![value.as_ref().to_owned()],
        };
        let mut requirements: Vec<Requirement> = labels.into_iter().map(requirement).collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        LabelSelector { requirements, nothing: false }
    }

    /// Matches all objects.
    pub fn everything() -> LabelSelector {
        LabelSelector::default()
    }

    /// Matches no object.
    pub fn nothing() -> LabelSelector {
        LabelSelector { requirements: Vec::new(), nothing: true }
    }

    /// Whether the selector matches all objects.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// The requirements, all of which must match.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether the selector matches these labels.
    pub fn matches(&self, labels: Option<&impl Labels>) -> bool {
        self.matches_with(|key| labels?.label(key))
    }

    /// The same for labels in another representation.
    pub fn matches_with<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }

    /// The value that the selector requires of a label.
    pub fn exact(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements.iter().find(|requirement| requirement.key == key)?;
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) => Some(value),
            _ => None,
        }
    }
}

impl Requirement {
    /// Checks and builds a requirement.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Requirement, SelectorError> {
        let errors = check(key, operator, &values);
        if errors.is_empty() {
            return Ok(Requirement { key: key.to_owned(), operator, values });
        }
        let mut texts: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        texts.dedup();
        Err(SelectorError(if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) }))
    }

    /// Whether the requirement matches a label's value or absence.
    pub fn matches(&self, value: Option<&str>) -> bool {
        self.operator.matches(self.values.iter().map(String::as_str), value)
    }
}

fn check(key: &str, operator: Operator, values: &[String]) -> Errors {
    let mut errors = Errors::new();
    let wrong = names::qualified_name(key);
    if !wrong.is_empty() {
        errors.invalid(&Path::root("key"), key, wrong.join("; "));
    }
    let path = Path::root("values");
    let wrong_count = match operator {
        Operator::In | Operator::NotIn if values.is_empty() => "for 'in', 'notin' operators, values set can't be empty",
        Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
            "exact-match compatibility requires one single value"
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            "values set must be empty for exists and does not exist"
        }
        Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
            "for 'Gt', 'Lt' operators, exactly one value is required"
        }
        _ => "",
    };
    if !wrong_count.is_empty() {
        errors.invalid(&path, values.to_vec(), wrong_count);
    }
    for (index, value) in values.iter().enumerate() {
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) && value.parse::<i64>().is_err() {
            let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
            errors.invalid(&path.index(index), value.as_str(), detail);
        }
    }
    for (index, value) in values.iter().enumerate() {
        let wrong = names::label_value(value);
        if !wrong.is_empty() {
            errors.invalid(&path.index(index).key(key), value.as_str(), wrong.join("; "));
        }
    }
    errors
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                out.write_str(",")?;
            }
            requirement.fmt(out)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let key = &self.key;
        match self.operator {
            Operator::In => write!(out, "{key} in ({values})"),
            Operator::NotIn => write!(out, "{key} notin ({values})"),
            Operator::Equals => write!(out, "{key}={values}"),
            Operator::DoubleEquals => write!(out, "{key}=={values}"),
            Operator::NotEquals => write!(out, "{key}!={values}"),
            Operator::GreaterThan => write!(out, "{key}>{values}"),
            Operator::LessThan => write!(out, "{key}<{values}"),
            Operator::Exists => out.write_str(key),
            Operator::DoesNotExist => write!(out, "!{key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn labels() -> Map<String, Value> {
        json!({"app": "web", "tier": "", "level": "7"}).as_object().unwrap().clone()
    }

    #[test]
    fn text_selectors_match() {
        for (text, selected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app!=web", false),
            ("app", true),
            ("!app", false),
            ("other", false),
            ("!other", true),
            ("other!=x", true),
            ("app in (web,db)", true),
            ("app notin (web)", false),
            ("other notin (web)", true),
            ("tier=", true),
            ("tier in ()", true),
            ("tier in (,a)", true),
            ("level>6", true),
            ("level>7", false),
            ("level<8", true),
            ("app>1", false),
            ("app=web,level=8", false),
            (" app = web , level ", true),
            ("app in (in,notin)", false),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().matches(Some(&labels())), selected, "{text}");
        }
        assert!(LabelSelector::everything().matches(None::<&Map<String, Value>>));
        assert!(!LabelSelector::parse("app").unwrap().matches(None::<&Map<String, Value>>));
    }

    #[test]
    fn object_selectors_match() {
        let expression = |operator: &str, values: Value| json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "level", "operator": operator, "values": values}]});
        for (selector, selected) in [
            (Value::Null, false),
            (json!({}), true),
            (expression("In", json!(["7"])), true),
            (expression("NotIn", json!(["7"])), false),
            (expression("Exists", json!([])), true),
            (expression("DoesNotExist", Value::Null), false),
            (json!({"matchLabels": {"app": "db"}}), false),
        ] {
            assert_eq!(LabelSelector::from_object(&selector).unwrap().matches(Some(&labels())), selected, "{selector}");
        }
        for (selector, message) in [
            (expression("Like", json!([])), "\"Like\" is not a valid label selector operator".to_owned()),
            (
                expression("In", json!([])),
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".to_owned(),
            ),
        ] {
            assert_eq!(LabelSelector::from_object(&selector).unwrap_err().0, message);
        }
    }

    #[test]
    fn selectors_are_written_in_one_form() {
        for (text, expected) in [
            ("b in (y,x),a", "a,b in (x,y)"),
            ("!a", "!a"),
            ("a==b", "a==b"),
            ("a!=b", "a!=b"),
            ("a>1", "a>1"),
            ("a = ", "a="),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().to_string(), expected);
        }
        assert_eq!(LabelSelector::parse("a in (b)").unwrap().exact("a"), Some("b"));
        assert_eq!(LabelSelector::parse("a!=b").unwrap().exact("a"), None);
    }
}
