//! Label selectors of the typed API. What they mean is in `semantics`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use knarr_semantics::selector::Expression;
pub use knarr_semantics::selector::{LabelSelector as Selector, SelectorError};

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Parses a `LabelSelector` of the API.
pub fn of(selector: &LabelSelector) -> Result<Selector, SelectorError> {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    Selector::new(labels, selector.match_expressions.iter().flatten().map(expression))
}

/// Parses an optional `LabelSelector`; a missing one matches nothing.
pub fn of_option(selector: Option<&LabelSelector>) -> Result<Selector, SelectorError> {
    selector.map_or_else(|| Ok(Selector::nothing()), of)
}

fn expression(requirement: &LabelSelectorRequirement) -> Expression<'_> {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    Expression { key, operator, values: values.clone().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn typed_selectors_match() {
        let pod = labels(&[("app", "web"), ("tier", "front")]);
        for (key, operator, values, outcome) in [
            ("app", "In", vec!["web", "api"], Ok((true, "app in (api,web)"))),
            ("app", "NotIn", vec!["web"], Ok((false, "app notin (web)"))),
            ("zone", "NotIn", vec!["a"], Ok((true, "zone notin (a)"))),
            ("tier", "Exists", vec![], Ok((true, "tier"))),
            ("tier", "DoesNotExist", vec![], Ok((false, "!tier"))),
            ("app", "Near", vec![], Err("\"Near\" is not a valid label selector operator")),
            (
                "app",
                "In",
                vec![],
                Err("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"),
            ),
        ] {
            let values = Some(values.iter().map(|value| value.to_string()).collect());
            let requirement = LabelSelectorRequirement { key: key.into(), operator: operator.into(), values };
            let selector = LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None };
            let read = of(&selector).map(|read| (read.matches(Some(&pod)), read.to_string()));
            let expected = outcome.map(|(matches, text)| (matches, text.to_owned()));
            assert_eq!(read, expected.map_err(|message| SelectorError(message.to_owned())), "{key} {operator}");
        }
        let both = LabelSelector { match_labels: Some(labels(&[("app", "web")])), match_expressions: None };
        assert!(of(&both).unwrap().matches(Some(&pod)));
        assert!(of(&LabelSelector::default()).unwrap().matches(None::<&Labels>));
        assert!(!of_option(None).unwrap().matches(Some(&pod)));
    }
}
