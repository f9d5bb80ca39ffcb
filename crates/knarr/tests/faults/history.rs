//! Checks the records of writers, readers and watches.
//!
//! Every object is a register with compare-and-swap, and every version has a number that the store gave it, in one order
//! for all objects. A history is linearizable if the versions of each object form one chain, each acknowledged write is a link
//! of it, refused writes are not, lists show all chains at one point, and operations that did not overlap in time saw versions
//! in the order in which they happened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// The version of an object.
pub type Version = u64;
/// The value of an object that was deleted.
pub const DELETED: &str = "";
/// The version before an object was created.
pub const ABSENT: Version = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Written as this version.
    Done(Version),
    /// Deleted; the response does not contain the version.
    Deleted,
    /// The object had changed.
    Refused,
    /// No response, or one that says nothing about the write.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Write {
    pub key: String,
    /// Written once, unless it is [`DELETED`].
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

/// All objects at one version of the store.
#[derive(Clone, Debug)]
pub struct List {
    pub version: Version,
    /// Versions and values by key.
    pub items: BTreeMap<String, (Version, String)>,
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
    pub lists: Vec<List>,
    /// The events of each watch.
    pub watches: Vec<Vec<Event>>,
}

impl Records {
    pub fn acknowledged(&self) -> usize {
        self.acknowledgements().count()
    }

    fn acknowledgements(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter().filter(|write| matches!(write.outcome, Outcome::Done(_) | Outcome::Deleted))
    }

    /// The longest times between the ends of acknowledged writes, with their starts, longest first.
    pub fn outages(&self, count: usize) -> Vec<(Instant, Duration)> {
        let mut ends: Vec<Instant> = self.acknowledgements().map(|write| write.ended).collect();
        ends.sort();
        let mut outages: Vec<_> = ends.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect();
        outages.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
        outages.truncate(count);
        outages
    }
}

/// The versions of one object.
#[derive(Default)]
struct Chain<'r> {
    values: BTreeMap<Version, &'r str>,
    /// The first version of each value: searching for it would take too long for a run of an hour.
    versions: HashMap<&'r str, Version>,
}

type Chains<'r> = BTreeMap<&'r str, Chain<'r>>;

/// The first violation that each of the checks finds.
pub fn violations(records: &Records) -> Vec<String> {
    let chains = chains(&records.watches[0]);
    let found = [
        watches(&records.watches),
        writes(&records.writes, &chains),
        origins(&records.writes, &chains),
        reads(&records.reads, &chains),
        lists(&records.lists, &chains),
        real_time(records, &chains),
    ];
    found.into_iter().flatten().collect()
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
fn chains(events: &[Event]) -> Chains<'_> {
    let mut chains: Chains<'_> = BTreeMap::new();
    for event in events {
        let chain = chains.entry(&event.key).or_default();
        chain.values.insert(event.version, &event.value);
        chain.versions.entry(&event.value).or_insert(event.version);
    }
    chains
}

/// The version of an object that another one replaced.
fn replaced(chain: &Chain<'_>, version: Version) -> Version {
    match chain.values.range(..version).next_back() {
        Some((before, value)) if *value != DELETED => *before,
        _ => ABSENT,
    }
}

/// The version that a write created, if it took effect.
fn effect(write: &Write, chains: &Chains<'_>) -> Option<Version> {
    let chain = chains.get(write.key.as_str())?;
    match write.value.as_str() {
        DELETED => {
            let (version, value) = chain.values.range(write.expected + 1..).next()?;
            (*value == DELETED && chain.values.contains_key(&write.expected)).then_some(*version)
        }
        value => chain.versions.get(value).copied(),
    }
}

fn writes(writes: &[Write], chains: &Chains<'_>) -> Option<String> {
    writes.iter().find_map(|write| {
        let effect = effect(write, chains);
        match (write.outcome, effect) {
            (Outcome::Done(version), Some(effect)) if effect == version => {}
            (Outcome::Deleted, Some(_)) => {}
            (Outcome::Done(_) | Outcome::Deleted, _) => {
                return Some(format!("an acknowledged write was lost: {write:?}"));
            }
            (Outcome::Refused, Some(_)) => return Some(format!("a write that was refused took effect: {write:?}")),
            (Outcome::Refused | Outcome::Unknown, _) => {}
        }
        let before = replaced(chains.get(write.key.as_str())?, effect?);
        (before != write.expected)
            .then(|| format!("a write replaced version {before}, not the one it expected: {write:?}"))
    })
}

/// Every version comes from one write, and no write from two versions.
fn origins(writes: &[Write], chains: &Chains<'_>) -> Option<String> {
    let mut known: BTreeMap<(&str, Version), usize> = BTreeMap::new();
    for write in writes {
        if let Some(version) = effect(write, chains) {
            *known.entry((&write.key, version)).or_default() += 1;
        }
    }
    chains.iter().find_map(|(key, chain)| {
        chain.values.iter().find_map(|(version, value)| match known.get(&(*key, *version)) {
            Some(1) => None,
            Some(_) => Some(format!("two writes created version {version} of {key}, {value:?}")),
            // A second version of the same write is none of its effects.
            None => Some(format!("nobody wrote version {version} of {key}, {value:?}, or it took effect twice")),
        })
    })
}

fn reads(reads: &[Read], chains: &Chains<'_>) -> Option<String> {
    reads.iter().find_map(|read| {
        match chains.get(read.key.as_str()).and_then(|chain| chain.values.get(&read.version)) {
            Some(known) if *known == read.value => None,
            Some(known) => Some(format!("a read saw another value than {known}: {read:?}")),
            None => Some(format!("a read saw a version that no watch saw: {read:?}")),
        }
    })
}

/// A list has the newest version of every object at its own version, and nothing else.
fn lists(lists: &[List], chains: &Chains<'_>) -> Option<String> {
    lists.iter().find_map(|list| {
        let mut count = 0;
        for (key, chain) in chains {
            let newest = chain.values.range(..=list.version).next_back().filter(|(_, value)| **value != DELETED);
            let item = list.items.get(*key).map(|(version, value)| (version, value.as_str()));
            if item != newest.map(|(version, value)| (version, *value)) {
                return Some(format!("a list at version {} has {item:?} as {key}, which was {newest:?}", list.version));
            }
            count += usize::from(item.is_some());
        }
        let unknown = list.items.keys().find(|key| !chains.contains_key(key.as_str()));
        (count != list.items.len())
            .then(|| format!("a list at version {} has {unknown:?}, which never was", list.version))
    })
}

/// What an operation showed or did, and when; its end is unknown if its response is.
struct Operation<'r> {
    key: &'r str,
    started: Instant,
    ended: Option<Instant>,
    version: Version,
}

fn operations<'r>(records: &'r Records, chains: &Chains<'r>) -> Vec<Operation<'r>> {
    let mut all = Vec::new();
    for write in &records.writes {
        if let Some(version) = effect(write, chains) {
            let ended = (write.outcome != Outcome::Unknown).then_some(write.ended);
            all.push(Operation { key: &write.key, started: write.started, ended, version });
        }
    }
    for read in &records.reads {
        let (ended, version) = (Some(read.ended), read.version);
        all.push(Operation { key: &read.key, started: read.started, ended, version });
    }
    for list in &records.lists {
        let items = list.items.iter();
        all.extend(items.map(|(key, (version, _))| Operation {
            key,
            started: list.started,
            ended: Some(list.ended),
            version: *version,
        }));
    }
    all
}

/// Whoever starts after another has ended sees at least its version.
fn real_time(records: &Records, chains: &Chains<'_>) -> Option<String> {
    let operations = operations(records, chains);
    let known = |operation: &Operation<'_>| operation.ended.map(|ended| (ended, operation.version));
    let mut by_key: BTreeMap<&str, Vec<&Operation<'_>>> = BTreeMap::new();
    for operation in &operations {
        by_key.entry(operation.key).or_default().push(operation);
    }
    for (key, operations) in by_key {
        let known = operations.iter().filter_map(|operation| known(operation)).collect();
        let seen = operations.iter().map(|operation| (operation.started, operation.version)).collect();
        if let Some((version, newest)) = outdated(known, seen) {
            return Some(format!("of {key}, version {version} was seen after {newest} was known"));
        }
    }
    // A list shows the whole store: nothing that was known is newer.
    let all = operations.iter().filter_map(known).chain(records.lists.iter().map(|list| (list.ended, list.version)));
    let seen = records.lists.iter().map(|list| (list.started, list.version)).collect();
    let (version, newest) = outdated(all.collect(), seen)?;
    Some(format!("a list at version {version} was seen after {newest} was known"))
}

/// The first version that was seen by somebody who started after a newer one was known, and that one.
fn outdated(mut known: Vec<(Instant, Version)>, mut seen: Vec<(Instant, Version)>) -> Option<(Version, Version)> {
    known.sort();
    seen.sort();
    let mut known = known.into_iter().peekable();
    let mut newest = ABSENT;
    seen.into_iter().find_map(|(started, version)| {
        while let Some((_, earlier)) = known.next_if(|(ended, _)| *ended < started) {
            newest = newest.max(earlier);
        }
        (version < newest).then_some((version, newest))
    })
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
