//! The verbs of the API that discovery lists for a kind.

use std::fmt;

/// A verb of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
}

/// A set of verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Verbs(u8);

impl Verb {
    /// Every verb, in the order of their names.
    pub const ALL: [Verb; 8] = [
        Verb::Create,
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Update,
        Verb::Watch,
    ];

    /// The name of the verb in discovery and RBAC rules.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }

    /// The verb of that name.
    pub fn parse(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl Verbs {
    /// All verbs.
    pub const ALL: Verbs = Verbs(u8::MAX);

    /// Whether the verb is in the set.
    pub fn contains(self, verb: Verb) -> bool {
        self.0 & (1 << verb as u8) != 0
    }

    /// The verbs of the set in the order of their names.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.contains(*verb))
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<T: IntoIterator<Item = Verb>>(verbs: T) -> Verbs {
        Verbs(verbs.into_iter().fold(0, |set, verb| set | 1 << verb as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let verbs: Verbs = [Verb::Watch, Verb::Get].into_iter().collect();
        assert_eq!(verbs.iter().collect::<Vec<_>>(), [Verb::Get, Verb::Watch]);
        assert!(!verbs.contains(Verb::Create));
        assert_eq!(Verbs::ALL.iter().count(), 8);
        assert_eq!(Verb::parse("deletecollection"), Some(Verb::DeleteCollection));
        assert_eq!(Verb::parse("destroy"), None);
    }
}
