//! Checks the records of writers and watches.
//!
//! Every object is a register with compare-and-swap, and every version has a number that the store gave it. A history is
//! linearizable if the versions form one chain, each acknowledged write is a link of it, refused writes are not, and
//! operations that did not overlap in time saw versions in the order in which they happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The version of an object.
pub type Version = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Written as this version.
    Done(Version),
    /// The object had changed.
    Refused,
    /// No answer, or one that says nothing about the write.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Write {
    pub key: String,
    pub value: String,
    /// The version that is replaced.
    pub expected: Version,
    pub outcome: Outcome,
    pub started: Instant,
    pub ended: Instant,
}

#[derive(Clone, Debug)]
pub struct Read {
    pub key: String,
    pub value: String,
    pub version: Version,
    pub started: Instant,
    pub ended: Instant,
}

/// An event of a watch: a new version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub key: String,
    pub value: String,
    pub version: Version,
}

/// Everything that was recorded.
#[derive(Default)]
pub struct Records {
    pub writes: Vec<Write>,
    pub reads: Vec<Read>,
    /// The events of each watch.
    pub watches: Vec<Vec<Event>>,
}

impl Records {
    pub fn acknowledged(&self) -> usize {
        self.writes.iter().filter(|write| matches!(write.outcome, Outcome::Done(_))).count()
    }

    /// The longest time between the ends of acknowledged writes.
    pub fn longest_outage(&self) -> std::time::Duration {
        let mut ends: Vec<Instant> = self
            .writes
            .iter()
            .filter(|write| matches!(write.outcome, Outcome::Done(_)))
            .map(|write| write.ended)
            .collect();
        ends.sort();
        ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

/// Panics with the first violation.
pub fn check(records: &Records) {
    if let Some(violation) = violation(records) {
        panic!("{violation}");
    }
}

fn violation(records: &Records) -> Option<String> {
    watches(&records.watches).or_else(|| {
        let chains = chains(&records.watches[0]);
        writes(&records.writes, &chains).or_else(|| reads(records, &chains)).or_else(|| real_time(records))
    })
}

/// All watches saw the same events, each once and in order.
fn watches(watches: &[Vec<Event>]) -> Option<String> {
    for (number, events) in watches.iter().enumerate() {
        if let Some(pair) = events.windows(2).find(|pair| pair[0].version >= pair[1].version) {
            return Some(format!("watch {number} saw {:?} and then {:?}", pair[0], pair[1]));
        }
    }
    let first = watches.first()?;
    for (number, events) in watches.iter().enumerate().skip(1) {
        let (mine, theirs): (BTreeSet<_>, BTreeSet<_>) =
            (first.iter().map(|event| event.version).collect(), events.iter().map(|event| event.version).collect());
        if let Some(version) = mine.symmetric_difference(&theirs).next() {
            return Some(format!("one of the watches 0 and {number} missed version {version}"));
        }
        if let Some((a, b)) = first.iter().zip(events).find(|(a, b)| a != b) {
            return Some(format!("watches 0 and {number} saw {a:?} and {b:?}"));
        }
    }
    None
}

/// The values of each object by version.
fn chains(events: &[Event]) -> BTreeMap<&str, BTreeMap<Version, &str>> {
    let mut chains: BTreeMap<&str, BTreeMap<Version, &str>> = BTreeMap::new();
    for event in events {
        chains.entry(&event.key).or_default().insert(event.version, &event.value);
    }
    chains
}

fn writes(writes: &[Write], chains: &BTreeMap<&str, BTreeMap<Version, &str>>) -> Option<String> {
    let nothing = BTreeMap::new();
    for write in writes {
        let chain = chains.get(write.key.as_str()).unwrap_or(&nothing);
        match write.outcome {
            Outcome::Done(version) => {
                if chain.get(&version) != Some(&write.value.as_str()) {
                    return Some(format!("an acknowledged write was lost: {write:?}"));
                }
                let before = chain.range(..version).next_back().map(|(version, _)| *version);
                // The first version that watches saw is older than any write, or the one that they began with.
                if before.is_some_and(|before| before != write.expected) {
                    return Some(format!("a write replaced version {before:?}, not the one it expected: {write:?}"));
                }
            }
            Outcome::Refused if chain.values().any(|value| *value == write.value) => {
                return Some(format!("a write that was refused took effect: {write:?}"));
            }
            _ => {}
        }
    }
    None
}

fn reads(records: &Records, chains: &BTreeMap<&str, BTreeMap<Version, &str>>) -> Option<String> {
    records.reads.iter().find_map(|read| {
        let known = chains.get(read.key.as_str())?.get(&read.version)?;
        (*known != read.value).then(|| format!("a read saw another value than {known}: {read:?}"))
    })
}

/// Whoever starts after another has ended sees at least its version.
fn real_time(records: &Records) -> Option<String> {
    let mut operations: BTreeMap<&str, Vec<(Instant, Instant, Version)>> = BTreeMap::new();
    for write in &records.writes {
        if let Outcome::Done(version) = write.outcome {
            operations.entry(&write.key).or_default().push((write.started, write.ended, version));
        }
    }
    for read in &records.reads {
        operations.entry(&read.key).or_default().push((read.started, read.ended, read.version));
    }
    for (key, mut operations) in operations {
        let mut by_end = operations.clone();
        operations.sort_by_key(|(started, ..)| *started);
        by_end.sort_by_key(|(_, ended, _)| *ended);
        let mut ended = by_end.into_iter().peekable();
        let mut newest = 0;
        for (started, _, version) in operations {
            while let Some((_, _, earlier)) = ended.next_if(|(_, end, _)| *end < started) {
                newest = newest.max(earlier);
            }
            if version < newest {
                return Some(format!("of {key}, version {version} was seen after {newest} was known"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn event(version: Version, value: &str) -> Event {
        Event { key: "a".into(), value: value.into(), version }
    }

    /// A history of two acknowledged writes, one refused, one unknown and one read; times are in milliseconds.
    fn good() -> Records {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let write = |value: &str, expected, outcome, from, to| Write {
            key: "a".into(),
            value: value.into(),
            expected,
            outcome,
            started: at(from),
            ended: at(to),
        };
        let events = vec![event(1, "first"), event(2, "one"), event(5, "lost answer"), event(7, "two")];
        Records {
            writes: vec![
                write("one", 1, Outcome::Done(2), 0, 10),
                write("late", 1, Outcome::Refused, 5, 20),
                write("lost answer", 2, Outcome::Unknown, 20, 30),
                write("two", 5, Outcome::Done(7), 40, 50),
            ],
            reads: vec![Read { key: "a".into(), value: "one".into(), version: 2, started: at(12), ended: at(14) }],
            watches: vec![events.clone(), events],
        }
    }

    #[test]
    fn a_good_history_passes_and_each_violation_is_found() {
        assert_eq!(violation(&good()), None);
        type Spoil = fn(&mut Records);
        let spoilers: [(&str, Spoil); 8] = [
            ("saw", |records| records.watches[1].swap(1, 2)),
            ("saw", |records| records.watches[1].insert(1, event(1, "first"))),
            ("missed", |records| drop(records.watches[1].remove(2))),
            ("was lost", |records| records.watches.iter_mut().for_each(|events| drop(events.pop()))),
            ("took effect", |records| records.watches.iter_mut().for_each(|events| events[2].value = "late".into())),
            ("not the one it expected", |records| records.writes[3].expected = 2),
            ("another value", |records| records.reads[0].value = "other".into()),
            ("seen after", |records| {
                records.reads[0].started = records.writes[3].ended + Duration::from_millis(1);
                records.reads[0].ended = records.reads[0].started;
            }),
        ];
        for (text, spoil) in spoilers {
            let mut records = good();
            spoil(&mut records);
            let found = violation(&records).unwrap_or_default();
            assert!(found.contains(text), "{text}: {found}");
        }
    }
}
