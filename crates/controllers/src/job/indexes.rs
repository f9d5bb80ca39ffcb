//! Sets of completion indexes, written as "0,3-7".

use std::fmt;

/// Sorted ranges that neither overlap nor touch; both ends are inclusive.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Indexes(Vec<(u32, u32)>);

impl Indexes {
    /// Parses the text; ranges that are invalid or beyond the number of completions are left out.
    pub fn parse(text: &str, completions: u32) -> Self {
        let range = |part: &str| -> Option<(u32, u32)> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            (first < completions && first <= last).then(|| (first, last.min(completions - 1)))
        };
        Self::of_ranges(text.split(',').filter_map(range).collect())
    }

    fn of_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    pub fn with(&self, more: impl IntoIterator<Item = u32>) -> Self {
        Self::of_ranges(self.0.iter().copied().chain(more.into_iter().map(|index| (index, index))).collect())
    }

    pub fn union(&self, other: &Self) -> Self {
        Self::of_ranges(self.0.iter().chain(&other.0).copied().collect())
    }

    pub fn has(&self, index: u32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|(first, last)| (last - first + 1) as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many indexes are in both.
    pub fn overlap(&self, other: &Self) -> usize {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut total = 0;
        while let (Some((first, last)), Some((other_first, other_last))) = (ours.peek(), theirs.peek()) {
            let (from, to) = (*first.max(other_first), *last.min(other_last));
            total += if from <= to { (to - from + 1) as usize } else { 0 };
            // The range that ends first overlaps with nothing further.
            if last < other_last {
                ours.next()
            } else {
                theirs.next()
            };
        }
        total
    }

    /// The lowest indexes that are not in the set.
    pub fn missing(&self, count: usize, completions: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let mut next = 0;
        for (first, last) in self.0.iter().copied().chain([(completions, completions)]) {
            while next < first.min(completions) && found.len() < count {
                found.push(next);
                next += 1;
            }
            next = next.max(last.saturating_add(1));
        }
        found
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match last - first {
                0 => write!(out, "{comma}{first}")?,
                1 => write!(out, "{comma}{first},{last}")?,
                _ => write!(out, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_writing_and_adding() {
        for (text, more, completions, expected, count) in [
            ("", vec![], 10, "", 0),
            ("1,3-5", vec![2], 10, "1-5", 5),
            ("0,1", vec![], 10, "0,1", 2),
            ("0-3,x,7", vec![9], 10, "0-3,7,9", 6),
            ("0-20", vec![], 10, "0-9", 10),
            ("12", vec![4], 10, "4", 1),
        ] {
            let indexes = Indexes::parse(text, completions).with(more);
            assert_eq!((indexes.to_string().as_str(), indexes.count()), (expected, count), "{text}");
        }
    }

    #[test]
    fn missing_and_overlapping() {
        let some = Indexes::parse("1,3-5", 10);
        assert_eq!(some.missing(3, 10), [0, 2, 6]);
        assert_eq!(some.missing(20, 8), [0, 2, 6, 7]);
        assert_eq!(Indexes::default().missing(2, 1), [0]);
        for (text, shared) in [("0-3", 2), ("", 0), ("0,2,6-9", 0), ("0-9", 4), ("1,4", 2), ("5-9", 1)] {
            assert_eq!(some.overlap(&Indexes::parse(text, 10)), shared, "{text}");
        }
        assert!(some.has(4) && !some.has(2) && !some.has(9));
        assert_eq!(some.union(&Indexes::parse("2", 10)).to_string(), "1-5");
    }
}
