//! Terms of node selectors: of node affinity, of volumes and of devices.

use crate::selector::Operator;

/// A requirement of a term, with its values in whatever representation a component has them.
pub struct Requirement<'a, V> {
    /// The key of the label, or the path of the field.
    pub key: &'a str,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    pub operator: &'a str,
    /// What the label or field is compared with.
    pub values: V,
}

/// The only field that a term can name.
const NAME: &str = "metadata.name";

/// Whether a node with this name and these labels matches a term. One without requirements, or with one that the API
/// would refuse, matches no node.
pub fn term_matches<'a, 'l, V: Iterator<Item = &'a str> + Clone>(
    mut expressions: impl Iterator<Item = Requirement<'a, V>>,
    mut fields: impl Iterator<Item = Requirement<'a, V>>,
    name: &str,
    label: impl Fn(&str) -> Option<&'l str>,
) -> bool {
    let mut is_empty = true;
    expressions.all(|requirement| {
        is_empty = false;
        expression_matches(&requirement, label(requirement.key))
    }) && fields.all(|requirement| {
        is_empty = false;
        field_matches(&requirement, name)
    }) && !is_empty
}

fn expression_matches<'a, V: Iterator<Item = &'a str> + Clone>(
    requirement: &Requirement<'_, V>,
    value: Option<&str>,
) -> bool {
    let count = requirement.values.clone().take(2).count();
    let (operator, is_valid) = match requirement.operator {
        "In" => (Operator::In, count > 0),
        "NotIn" => (Operator::NotIn, count > 0),
        "Exists" => (Operator::Exists, count == 0),
        "DoesNotExist" => (Operator::DoesNotExist, count == 0),
        "Gt" => (Operator::GreaterThan, count == 1),
        "Lt" => (Operator::LessThan, count == 1),
        _ => return false,
    };
    is_valid && operator.matches(requirement.values.clone(), value)
}

/// A field is compared with exactly one value; one that a node does not have is empty.
fn field_matches<'a, V: Iterator<Item = &'a str> + Clone>(requirement: &Requirement<'_, V>, name: &str) -> bool {
    let own = if requirement.key == NAME { name } else { "" };
    let mut values = requirement.values.clone();
    match (requirement.operator, values.next(), values.next()) {
        ("In", Some(value), None) => value == own,
        ("NotIn", Some(value), None) => value != own,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = (&'static str, &'static str, &'static [&'static str]);

    fn matches(expressions: &[Row], fields: &[Row]) -> bool {
        let requirement =
            |&(key, operator, values): &Row| Requirement { key, operator, values: values.iter().copied() };
        let label = |key: &str| match key {
            "zone" => Some("a"),
            "cpus" => Some("8"),
            "empty" => Some(""),
            _ => None,
        };
        term_matches(expressions.iter().map(requirement), fields.iter().map(requirement), "n1", label)
    }

    #[test]
    fn labels_match() {
        for (row, expected) in [
            (("zone", "In", ["a", "b"].as_slice()), true),
            (("zone", "In", &["b"]), false),
            (("zone", "In", &[]), false),
            (("none", "In", &["a"]), false),
            (("empty", "In", &[""]), true),
            (("zone", "NotIn", &["a"]), false),
            (("zone", "NotIn", &["b"]), true),
            (("none", "NotIn", &["a"]), true),
            // The API refuses these; components that stored an older object do not match them.
            (("none", "NotIn", &[]), false),
            (("zone", "Exists", &["a"]), false),
            (("none", "DoesNotExist", &["a"]), false),
            (("zone", "Exists", &[]), true),
            (("none", "Exists", &[]), false),
            (("none", "DoesNotExist", &[]), true),
            (("zone", "DoesNotExist", &[]), false),
            (("cpus", "Gt", &["4"]), true),
            (("cpus", "Gt", &["8"]), false),
            (("cpus", "Lt", &["9"]), true),
            (("cpus", "Lt", &["8"]), false),
            (("cpus", "Lt", &["9", "10"]), false),
            (("cpus", "Gt", &["x"]), false),
            (("zone", "Gt", &["1"]), false),
            (("none", "Lt", &["1"]), false),
            (("zone", "Near", &["a"]), false),
        ] {
            assert_eq!(matches(&[row], &[]), expected, "{row:?}");
        }
        assert!(!matches(&[("zone", "In", &["a"]), ("cpus", "Gt", &["9"])], &[]), "all must match");
        assert!(!matches(&[], &[]), "an empty term matches nothing");
    }

    #[test]
    fn fields_match() {
        for (row, expected) in [
            (("metadata.name", "In", ["n1"].as_slice()), true),
            (("metadata.name", "In", &["n2"]), false),
            (("metadata.name", "In", &["n1", "n2"]), false),
            (("metadata.name", "NotIn", &["n2"]), true),
            (("metadata.name", "NotIn", &["n1"]), false),
            (("metadata.name", "Exists", &[]), false),
            (("metadata.uid", "In", &["n1"]), false),
            (("metadata.uid", "NotIn", &["n1"]), true),
        ] {
            assert_eq!(matches(&[], &[row]), expected, "{row:?}");
        }
        assert!(!matches(&[("zone", "In", &["b"])], &[("metadata.name", "In", &["n1"])]), "both must match");
    }
}
