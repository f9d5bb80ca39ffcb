//! Sets of field paths.

use super::element::PathElement;
use std::cmp::Ordering;
use std::fmt::Write as _;
use std::iter::Peekable;

/// A set of paths as a tree. A path can be in the set without the longer paths below it, and the reverse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Sorted by element.
    entries: Vec<Entry>,
}

/// A path element with the paths that continue from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last element of the path.
    pub element: PathElement,
    /// The path that ends here is in the set.
    pub member: bool,
    /// The longer paths.
    pub below: Set,
}

impl Set {
    /// A set of paths of field names.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Set::default();
        for path in paths {
            let elements: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
            set.insert(&elements);
        }
        set
    }

    /// Adds another set.
    pub fn join(self, other: Set) -> Set {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        self.union(&other)
    }

    /// Removes the paths of another set.
    pub fn subtract(&mut self, other: &Set) {
        for gone in &other.entries {
            let Ok(at) = self.entries.binary_search_by(|entry| entry.element.cmp(&gone.element)) else { continue };
            let entry = &mut self.entries[at];
            entry.member &= !gone.member;
            entry.below.subtract(&gone.below);
            if entry.is_empty() {
                self.entries.remove(at);
            }
        }
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        let at = match self.entries.binary_search_by(|entry| entry.element.cmp(first)) {
            Ok(at) => at,
            Err(at) => {
                self.entries.insert(at, Entry { element: first.clone(), member: false, below: Set::default() });
                at
            }
        };
        if rest.is_empty() {
            self.entries[at].member = true;
        } else {
            self.entries[at].below.insert(rest);
        }
    }

    /// Adds an entry that is greater than all before it, unless it is empty.
    pub(super) fn push(&mut self, entry: Entry) {
        if !entry.is_empty() {
            debug_assert!(self.entries.last().is_none_or(|last| last.element < entry.element));
            self.entries.push(entry);
        }
    }

    /// Builds a set from entries in any order; joins equal elements.
    pub(super) fn from_unsorted(mut entries: Vec<Entry>) -> Self {
        entries.retain(|entry| !entry.is_empty());
        if entries.is_sorted_by(|a, b| a.element < b.element) {
            return Set { entries };
        }
        entries.sort_by(|a, b| a.element.cmp(&b.element));
        let mut joined: Vec<Entry> = Vec::with_capacity(entries.len());
        let mut entries = entries.into_iter().peekable();
        while let Some(mut entry) = entries.next() {
            // What is below equal elements is put together first and sorted once: there may be many of them.
            let mut below = Vec::new();
            while let Some(same) = entries.next_if(|next| next.element == entry.element) {
                entry.member |= same.member;
                below.extend(same.below.entries);
            }
            if !below.is_empty() {
                below.append(&mut entry.below.entries);
                entry.below = Set::from_unsorted(below);
            }
            joined.push(entry);
        }
        Set { entries: joined }
    }

    /// The paths that are in any of the sets.
    pub fn union_of(sets: impl IntoIterator<Item = Set>) -> Set {
        Set::from_unsorted(sets.into_iter().flat_map(|set| set.entries).collect())
    }

    /// The entries at the root, sorted by element.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// No entry is ever empty, so this is quick.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry at the root for an element.
    pub fn get(&self, element: &PathElement) -> Option<&Entry> {
        let at = self.entries.binary_search_by(|entry| entry.element.cmp(element)).ok()?;
        Some(&self.entries[at])
    }

    /// The entry at the root for a field name.
    pub fn get_field(&self, name: &str) -> Option<&Entry> {
        let found = self.entries.binary_search_by(|entry| match &entry.element {
            PathElement::Field(other) => (**other).cmp(name),
            _ => Ordering::Greater,
        });
        found.ok().map(|at| &self.entries[at])
    }

    /// Whether the path is in the set.
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path.split_first() {
            None => false,
            Some((last, [])) => self.get(last).is_some_and(|entry| entry.member),
            Some((first, rest)) => self.get(first).is_some_and(|entry| entry.below.has(rest)),
        }
    }

    /// The paths that are in either set.
    pub fn union(&self, other: &Set) -> Set {
        let mut union = Set::default();
        let mut left = self.entries.iter().peekable();
        let mut right = other.entries.iter().peekable();
        while let Some(pair) = next_pair(&mut left, &mut right) {
            union.push(match pair {
                (Some(a), Some(b)) => {
                    let (member, below) = (a.member || b.member, a.below.union(&b.below));
                    Entry { element: a.element.clone(), member, below }
                }
                (Some(one), None) | (None, Some(one)) => one.clone(),
                (None, None) => continue,
            });
        }
        union
    }

    /// The paths that are in both sets.
    pub fn intersection(&self, other: &Set) -> Set {
        self.keep(other, |a, b| b.map(|b| (a.member && b.member, a.below.intersection(&b.below))))
    }

    /// The paths that are in this set only.
    pub fn difference(&self, other: &Set) -> Set {
        self.keep(other, |a, b| match b {
            Some(b) => Some((a.member && !b.member, a.below.difference(&b.below))),
            None => Some((a.member, a.below.clone())),
        })
    }

    /// Removes the other set's paths and everything below them.
    pub fn difference_below(&self, other: &Set) -> Set {
        self.keep(other, |a, b| match b {
            Some(b) if b.member => None,
            Some(b) => Some((a.member, a.below.difference_below(&b.below))),
            None => Some((a.member, a.below.clone())),
        })
    }

    /// What is left of the entries of this set, given those of the other one for the same elements. These are looked up: the
    /// other set may be large, and may be compared with many small ones.
    fn keep(&self, other: &Set, choose: impl Fn(&Entry, Option<&Entry>) -> Option<(bool, Set)>) -> Set {
        let mut kept = Set::default();
        for entry in &self.entries {
            if let Some((member, below)) = choose(entry, other.get(&entry.element)) {
                kept.push(Entry { element: entry.element.clone(), member, below });
            }
        }
        kept
    }

    /// The texts of all paths, as messages show them; at each level those that end come before longer ones. Paths may be long
    /// and share most of their text: no more are returned once they have `limit` bytes together.
    pub fn shown(&self, limit: usize) -> Vec<String> {
        let mut shown = Shown { path: String::new(), texts: Vec::new(), left: limit };
        shown.collect(self);
        shown.texts
    }
}

struct Shown {
    path: String,
    texts: Vec<String>,
    left: usize,
}

impl Shown {
    fn collect(&mut self, set: &Set) {
        for entry in set.entries.iter().filter(|entry| entry.member) {
            self.within(&entry.element, |shown| {
                shown.left = shown.left.saturating_sub(shown.path.len());
                shown.texts.push(shown.path.clone());
            });
        }
        for entry in set.entries.iter().filter(|entry| !entry.below.is_empty()) {
            self.within(&entry.element, |shown| shown.collect(&entry.below));
        }
    }

    fn within(&mut self, element: &PathElement, then: impl FnOnce(&mut Self)) {
        if self.left > 0 {
            let length = self.path.len();
            // Writing to a text cannot fail.
            let _ = write!(self.path, "{element}");
            then(self);
            self.path.truncate(length);
        }
    }
}

impl Entry {
    /// Whether there is no path.
    pub fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

type Entries<'a> = Peekable<std::slice::Iter<'a, Entry>>;

/// The next element of either side, with the entries that each side has for it.
fn next_pair<'a>(left: &mut Entries<'a>, right: &mut Entries<'a>) -> Option<(Option<&'a Entry>, Option<&'a Entry>)> {
    let order = match (left.peek(), right.peek()) {
        (Some(a), Some(b)) => a.element.cmp(&b.element),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => return None,
    };
    Some(match order {
        Ordering::Less => (left.next(), None),
        Ordering::Greater => (None, right.next()),
        Ordering::Equal => (left.next(), right.next()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(paths: &[&[&str]]) -> Set {
        Set::of_fields(paths)
    }

    #[test]
    fn sets_combine() {
        let a = set(&[&["a"], &["b", "c"], &["b", "d", "e"]]);
        let b = set(&[&["b"], &["b", "d", "e"], &["f"]]);
        assert_eq!(a.union(&b), set(&[&["a"], &["b"], &["b", "c"], &["b", "d", "e"], &["f"]]));
        assert_eq!(a.intersection(&b), set(&[&["b", "d", "e"]]));
        assert_eq!(a.difference(&b), set(&[&["a"], &["b", "c"]]));
        assert_eq!(a.difference_below(&b), set(&[&["a"]]));
        let mut left = a.clone();
        left.subtract(&b);
        assert_eq!(left, a.difference(&b));
        assert!(a.difference(&a).is_empty());
        assert!(a.has(&[PathElement::field("b"), PathElement::field("c")]));
        assert!(!a.has(&[PathElement::field("b")]));
    }

    #[test]
    fn paths_that_end_come_first() {
        let set = set(&[&["b", "c"], &["z"], &["a", "x"], &["a"]]);
        assert_eq!(set.shown(100), [".a", ".z", ".a.x", ".b.c"]);
        assert_eq!(set.shown(5), [".a", ".z", ".a.x"]);
    }

    fn any_set() -> impl Strategy<Value = Set> {
        let path = prop::collection::vec("[a-d]", 1..4);
        prop::collection::vec(path, 0..8).prop_map(|paths| {
            let mut set = Set::default();
            for path in paths {
                let elements: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
                set.insert(&elements);
            }
            set
        })
    }

    proptest! {
        #[test]
        fn sets_keep_the_laws_of_sets(a in any_set(), b in any_set()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(a.clone().join(b.clone()), a.union(&b));
            prop_assert_eq!(Set::union_of([a.clone(), b.clone(), a.clone()]), a.union(&b));
            let mut left = a.clone();
            left.subtract(&b);
            prop_assert_eq!(left, a.difference(&b));
            let written = crate::apply::encode_fields(&a);
            prop_assert_eq!(crate::apply::decode_fields(&written), Ok(a));
        }
    }
}
