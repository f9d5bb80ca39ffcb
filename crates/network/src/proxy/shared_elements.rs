//! Reference-counted elements that several Services share: in the kernel as long as one of them needs it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug, Default)]
pub struct SharedElements {
    users: HashMap<String, usize>,
    /// Reference counts before the current batch of changes.
    before: BTreeMap<String, usize>,
}

/// The changes for the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub gone: Vec<String>,
    pub new: Vec<String>,
}

impl SharedElements {
    /// Applies one Service's change.
    pub fn change(&mut self, before: &BTreeSet<String>, after: &BTreeSet<String>) {
        for element in after.difference(before) {
            *self.touch(element) += 1;
        }
        for element in before.difference(after) {
            let users = self.touch(element);
            *users = users.saturating_sub(1);
        }
    }

    /// All changes since the last call, together.
    pub fn take_difference(&mut self) -> Difference {
        let mut difference = Difference::default();
        for (element, before) in std::mem::take(&mut self.before) {
            let now = self.users.get(&element).copied().unwrap_or(0);
            if now == 0 {
                self.users.remove(&element);
            }
            match (before, now) {
                (0, 0) => {}
                (0, _) => difference.new.push(element),
                (_, 0) => difference.gone.push(element),
                _ => {}
            }
        }
        difference
    }

    fn touch(&mut self, element: &str) -> &mut usize {
        let users = self.users.entry(element.to_owned()).or_default();
        self.before.entry(element.to_owned()).or_insert(*users);
        users
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_stays_while_a_service_needs_it() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let mut shared = SharedElements::default();
        shared.change(&set(&[]), &set(&["a", "b"]));
        shared.change(&set(&[]), &set(&["a"]));
        assert_eq!(shared.take_difference(), Difference { gone: vec![], new: vec!["a".into(), "b".into()] });
        shared.change(&set(&["a", "b"]), &set(&[]));
        assert_eq!(shared.take_difference(), Difference { gone: vec!["b".into()], new: vec![] });
        shared.change(&set(&["a"]), &set(&[]));
        shared.change(&set(&[]), &set(&["a"]));
        assert_eq!(shared.take_difference(), Difference::default(), "handed from one to another");
    }
}
