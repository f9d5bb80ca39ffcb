//! The flags of each component, as Kubernetes publishes them (`flags.txt`).

use std::sync::LazyLock;

use crate::Component;

/// A flag of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    pub name: &'static str,
    /// The name of the type in `--help`.
    pub type_name: &'static str,
    /// The default as it would be typed; lists and maps are separated by commas.
    pub default: &'static str,
    pub shorthand: Option<char>,
    pub is_deprecated: bool,
    /// Accepted, but not printed by `--help`.
    pub is_hidden: bool,
    /// The section of `--help`; empty for components without sections.
    pub section: &'static str,
}

impl Flag {
    /// The value of a flag that is given without one.
    pub fn value_if_bare(&self) -> Option<&'static str> {
        matches!(self.type_name, "bool" | "version").then_some("true")
    }

    /// Whether repeated flags and separators add values instead of replacing them.
    pub fn has_many_values(&self) -> bool {
        matches!(
            self.type_name,
            "strings"
                | "stringArray"
                | "stringToString"
                | "mapStringString"
                | "mapStringBool"
                | "colonSeparatedMultimapStringString"
                | "int32Slice"
                | "namedCertKey"
                | "[]v1.Taint"
                | "reserved-memory"
                | "pattern=N,..."
        )
    }

    /// The default as a list of values.
    pub fn default_values(&self) -> Vec<String> {
        match (self.default, self.has_many_values()) {
            ("", _) => Vec::new(),
            (text, true) => text.split(',').map(str::to_owned).collect(),
            (text, false) => vec![text.to_owned()],
        }
    }
}

/// All flags of a component, by name.
pub fn flags(component: Component) -> &'static [Flag] {
    static TABLE: LazyLock<Vec<(Component, Vec<Flag>)>> = LazyLock::new(|| read(include_str!("flags.txt")));
    let own = TABLE.iter().find(|(known, _)| *known == component);
    own.map(|(_, flags)| flags.as_slice()).unwrap_or_default()
}

/// A flag by its name; `_` counts as `-`.
pub fn flag(component: Component, name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    let flags = flags(component);
    flags.binary_search_by(|flag| flag.name.cmp(&name)).ok().map(|index| &flags[index])
}

fn read(text: &'static str) -> Vec<(Component, Vec<Flag>)> {
    let mut all = Vec::new();
    for line in text.lines() {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(heading) => all.extend(Component::from_name(heading).map(|component| (component, Vec::new()))),
            None => {
                if let (Some((_, flags)), Some(flag)) = (all.last_mut(), read_flag(line)) {
                    flags.push(flag);
                }
            }
        }
    }
    all
}

fn read_flag(line: &'static str) -> Option<Flag> {
    let mut columns = line.split('\t');
    let (name, type_name, default, attributes, section) =
        (columns.next()?, columns.next()?, columns.next()?, columns.next()?, columns.next()?);
    let mut flag = Flag { name, type_name, default, shorthand: None, is_deprecated: false, is_hidden: false, section };
    for attribute in attributes.split(' ') {
        match attribute {
            "deprecated" => flag.is_deprecated = true,
            "hidden" => flag.is_hidden = true,
            _ => flag.shorthand = attribute.strip_prefix('-').and_then(|letter| letter.chars().next()),
        }
    }
    Some(flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_in_full_and_sorted() {
        let text = include_str!("flags.txt");
        let lines = text.lines().filter(|line| !line.starts_with('[')).count();
        let all: usize = Component::ALL.into_iter().map(|component| flags(component).len()).sum();
        assert_eq!(all, lines);
        for component in Component::ALL {
            assert!(flags(component).is_sorted_by_key(|flag| flag.name), "{component:?}");
            assert!(flags(component).len() > 50, "{component:?}");
        }
        assert_eq!(flag(Component::ApiServer, "etcd_servers").map(|flag| flag.name), Some("etcd-servers"));
        assert_eq!(flag(Component::Kubelet, "v").and_then(|flag| flag.shorthand), Some('v'));
        assert!(flag(Component::Kubelet, "etcd-servers").is_none());
    }
}
