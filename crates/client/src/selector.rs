//! Label selectors of the typed API: matching, and the text form of requests and statuses.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A parsed selector: equality terms and set terms, all of which must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    equal: Vec<(String, String)>,
    requirements: Vec<Requirement>,
    /// A missing selector selects nothing; an empty one selects everything.
    nothing: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

/// A selector has an unknown operator.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("\"{0}\" is not a valid label selector operator")]
pub struct UnknownOperator(pub String);

impl Selector {
    /// Matches no object.
    pub fn nothing() -> Self {
        Self { nothing: true, ..Self::default() }
    }

    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// The selector of a map of labels, as in Services and ReplicationControllers.
    pub fn of_map(labels: &Labels) -> Self {
        Self { equal: labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(), ..Self::default() }
    }

    /// Parses a `LabelSelector` of the API.
    pub fn of(selector: &LabelSelector) -> Result<Self, UnknownOperator> {
        let equal = selector.match_labels.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let requirements =
            selector.match_expressions.iter().flatten().map(Requirement::of).collect::<Result<_, UnknownOperator>>()?;
        Ok(Self { equal, requirements, nothing: false })
    }

    /// Parses an optional `LabelSelector`; a missing one matches nothing.
    pub fn of_option(selector: Option<&LabelSelector>) -> Result<Self, UnknownOperator> {
        selector.map_or_else(|| Ok(Self::nothing()), Self::of)
    }

    /// Parses the text form: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut selector = Self::default();
        for term in terms(text) {
            let term = term.trim();
            let set = |values: &str| -> Option<Vec<String>> {
                let inner = values.trim().strip_prefix('(')?.strip_suffix(')')?;
                Some(inner.split(',').map(|value| value.trim().to_owned()).collect())
            };
            if term.is_empty() {
                continue;
            } else if let Some((key, values)) = term.split_once(" notin ") {
                selector.requirements.push(Requirement::NotIn(key.trim().to_owned(), set(values)?));
            } else if let Some((key, values)) = term.split_once(" in ") {
                selector.requirements.push(Requirement::In(key.trim().to_owned(), set(values)?));
            } else if let Some((key, value)) = term.split_once("!=") {
                selector.requirements.push(Requirement::NotIn(key.trim().to_owned(), vec![value.trim().to_owned()]));
            } else if let Some((key, value)) = term.split_once('=') {
                let value = value.strip_prefix('=').unwrap_or(value);
                selector.equal.push((key.trim().to_owned(), value.trim().to_owned()));
            } else if let Some(key) = term.strip_prefix('!') {
                selector.requirements.push(Requirement::DoesNotExist(key.trim().to_owned()));
            } else {
                selector.requirements.push(Requirement::Exists(term.to_owned()));
            }
        }
        Some(selector)
    }

    /// Whether the selector has no terms and matches everything.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.equal.is_empty() && self.requirements.is_empty()
    }

    /// Whether the labels match.
    pub fn matches(&self, labels: Option<&Labels>) -> bool {
        let value = |key: &str| labels.and_then(|labels| labels.get(key));
        !self.nothing
            && self.equal.iter().all(|(key, expected)| value(key) == Some(expected))
            && self.requirements.iter().all(|requirement| match requirement {
                Requirement::In(key, values) => value(key).is_some_and(|v| values.contains(v)),
                Requirement::NotIn(key, values) => value(key).is_none_or(|v| !values.contains(v)),
                Requirement::Exists(key) => value(key).is_some(),
                Requirement::DoesNotExist(key) => value(key).is_none(),
            })
    }
}

/// Splits at commas outside of parentheses.
fn terms(text: &str) -> Vec<&str> {
    let (mut terms, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

impl Requirement {
    fn of(requirement: &LabelSelectorRequirement) -> Result<Self, UnknownOperator> {
        let key = requirement.key.clone();
        let values = || requirement.values.clone().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" => Ok(Self::In(key, values())),
            "NotIn" => Ok(Self::NotIn(key, values())),
            "Exists" => Ok(Self::Exists(key)),
            "DoesNotExist" => Ok(Self::DoesNotExist(key)),
            other => Err(UnknownOperator(other.to_owned())),
        }
    }

    fn key(&self) -> &str {
        match self {
            Self::In(key, _) | Self::NotIn(key, _) | Self::Exists(key) | Self::DoesNotExist(key) => key,
        }
    }
}

/// The text form of requests and of a scale's status: terms sorted by key, values sorted.
impl std::fmt::Display for Selector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = |values: &[String]| {
            let mut values = values.to_vec();
            values.sort();
            values.join(",")
        };
        let mut terms: Vec<(&str, String)> =
            self.equal.iter().map(|(key, value)| (key.as_str(), format!("{key}={value}"))).collect();
        terms.extend(self.requirements.iter().map(|requirement| {
            let text = match requirement {
                Requirement::In(key, values) => format!("{key} in ({})", set(values)),
                Requirement::NotIn(key, values) => format!("{key} notin ({})", set(values)),
                Requirement::Exists(key) => key.clone(),
                Requirement::DoesNotExist(key) => format!("!{key}"),
            };
            (requirement.key(), text)
        }));
        terms.sort_by(|a, b| a.0.cmp(b.0));
        let terms: Vec<String> = terms.into_iter().map(|(_, text)| text).collect();
        out.write_str(&terms.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
        LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: Some(values.iter().map(|v| v.to_string()).collect()),
            }]),
            match_labels: None,
        }
    }

    #[test]
    fn matching() {
        let pod = labels(&[("app", "web"), ("tier", "front")]);
        for (selector, matches, text) in [
            (expression("app", "In", &["web", "api"]), true, "app in (api,web)"),
            (expression("app", "NotIn", &["web"]), false, "app notin (web)"),
            (expression("zone", "NotIn", &["a"]), true, "zone notin (a)"),
            (expression("tier", "Exists", &[]), true, "tier"),
            (expression("tier", "DoesNotExist", &[]), false, "!tier"),
        ] {
            let selector = Selector::of(&selector).unwrap();
            assert_eq!(selector.matches(Some(&pod)), matches, "{text}");
            assert_eq!(selector.to_string(), text);
        }
        for text in ["app=web", "app in (api,web),tier=front", "!zone", "app,tier notin (back)"] {
            let selector = Selector::parse(text).unwrap();
            assert!(selector.matches(Some(&pod)), "{text}");
            assert_eq!(selector.to_string(), text);
        }
        for text in ["app!=web", "app==api", "zone", "app in (x)"] {
            assert!(!Selector::parse(text).unwrap().matches(Some(&pod)), "{text}");
        }
        assert!(Selector::of(&expression("a", "Near", &[])).is_err());
        assert!(Selector::of_map(&labels(&[("app", "web")])).matches(Some(&pod)));
        assert!(!Selector::of_map(&labels(&[("app", "web")])).matches(None));
        assert!(Selector::everything().matches(None));
        assert!(!Selector::of_option(None).unwrap().matches(Some(&pod)));
    }
}
