//! Sets of small numbers in the kernel's notation, such as `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// CPUs, or NUMA nodes, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NumberSet(BTreeSet<u32>);

/// A text that is not a list of numbers.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a list of numbers")]
pub struct NotASet(String);

impl NumberSet {
    /// Parses the kernel's notation.
    pub fn parse(text: &str) -> Result<Self, NotASet> {
        let bad = || NotASet(text.to_string());
        let mut set = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) =
                (first.trim().parse().map_err(|_| bad())?, last.trim().parse().map_err(|_| bad())?);
            set.extend(first..=last);
        }
        Ok(Self(set))
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the number is a member.
    pub fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The members of either set.
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// The members that the other set lacks.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// The members of both sets.
    pub fn common(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Whether the other set has all members.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for NumberSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl fmt::Display for NumberSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last - first {
                0 => write!(formatter, "{separator}{first}")?,
                _ => write!(formatter, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl TryFrom<String> for NumberSet {
    type Error = NotASet;

    fn try_from(text: String) -> Result<Self, NotASet> {
        Self::parse(&text)
    }
}

impl From<NumberSet> for String {
    fn from(set: NumberSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_they_are_read() {
        for text in ["", "0", "0-3", "0-3,8", "1,3,5-6"] {
            assert_eq!(NumberSet::parse(text).expect("a set").to_string(), text);
        }
        assert!(NumberSet::parse("a-b").is_err());
    }
}
