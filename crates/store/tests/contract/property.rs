//! Random histories: a real store and the model run the same steps and must return the same.

use std::sync::Arc;

use bytes::Bytes;
use knarr_store::{Entry, Error, Event, Notice, Range, Revision, Store, Watch};
use proptest::prelude::*;

use crate::model::{Model, key_of};

/// One step. Keys and prefixes are numbers into small tables, revisions are given as offsets from the newest.
#[derive(Clone, Debug)]
pub enum Step {
    Create { key: usize, size: usize },
    Update { key: usize, size: usize, wrong: bool },
    Delete { key: usize, wrong: bool },
    Range { prefix: usize, after: Option<usize>, limit: usize, back: Option<u64> },
    Watch { prefix: usize, back: u64 },
    Drain { watch: usize },
    Compact { back: u64 },
    Reopen,
}

const KEYS: [&str; 8] = ["pods/a", "pods/b", "pods/ns/a", "pods/ns/b", "nodes/a", "nodes/b", "short", "events/ns/e"];
const PREFIXES: [&str; 7] = ["", "pods/", "pods/ns/", "nodes/", "pods/a", "none/", "s"];

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..KEYS.len();
    let size = prop_oneof![4 => 0..100usize, 1 => 1000..5000usize];
    let step = prop_oneof![
        6 => (key.clone(), size.clone()).prop_map(|(key, size)| Step::Create { key, size }),
        6 => (key.clone(), size, prop::bool::weighted(0.2)).prop_map(|(key, size, wrong)| Step::Update { key, size, wrong }),
        3 => (key.clone(), prop::bool::weighted(0.2)).prop_map(|(key, wrong)| Step::Delete { key, wrong }),
        4 => (0..PREFIXES.len(), prop::option::of(key), 0..5usize, prop::option::of(0..12u64))
            .prop_map(|(prefix, after, limit, back)| Step::Range { prefix, after, limit, back }),
        2 => (0..PREFIXES.len(), 0..12u64).prop_map(|(prefix, back)| Step::Watch { prefix, back }),
        4 => (0..6usize).prop_map(|watch| Step::Drain { watch }),
        1 => (0..12u64).prop_map(|back| Step::Compact { back }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..80)
}

/// A store under test, and how to reopen it from its durable data.
#[async_trait::async_trait]
pub trait Subject: Send {
    fn store(&self) -> Arc<dyn Store>;
    fn root(&self) -> &str;
    async fn reopen(&mut self);
}

/// Runs the steps on both and compares.
pub async fn compare(mut subject: impl Subject, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let model = Model::new(subject.store().revision());
    let start = model.revision();
    model.compact(start).await.expect("nothing is before the start");
    let mut watches: Vec<Watched> = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let store = subject.store();
        let root = subject.root().to_owned();
        let named = |rest: &str| format!("{root}{rest}");
        let (real, ideal) = match step.clone() {
            Step::Create { key, size } => {
                let (key, value) = (named(KEYS[key]), value(number, size));
                (written(store.create(&key, value.clone(), None).await), written(model.create(&key, value, None).await))
            }
            Step::Update { key, size, wrong } => {
                let (key, value) = (named(KEYS[key]), value(number, size));
                let expected = expectation(&model, &key, wrong);
                let real = store.update(&key, value.clone(), expected, None).await;
                (written(real), written(model.update(&key, value, expected, None).await))
            }
            Step::Delete { key, wrong } => {
                let key = named(KEYS[key]);
                let expected = expectation(&model, &key, wrong);
                let real = store.delete(&key, expected).await.map(|revision| revision.to_string());
                let ideal = model.delete(&key, expected).await.map(|revision| revision.to_string());
                (rendered(real), rendered(ideal))
            }
            Step::Range { prefix, after, limit, back } => {
                let (prefix, after) = (named(PREFIXES[prefix]), after.map(|key| named(KEYS[key])));
                let at = back.map(|back| model.revision().saturating_sub(back).max(start));
                let range = Range { prefix: &prefix, after: after.as_deref(), limit, at, topic: None };
                (page(&*store, &range), page(&model, &range))
            }
            Step::Watch { prefix, back } => {
                let (prefix, after) = (named(PREFIXES[prefix]), model.revision().saturating_sub(back).max(start));
                let real = store.watch(&prefix, after);
                let opened = (
                    rendered(real.as_ref().map(|_| String::new()).map_err(copy)),
                    rendered(model.watch(&prefix, after).map(|_| String::new())),
                );
                if let Ok(watch) = real {
                    watches.push(Watched { watch, prefix, seen: after });
                }
                opened
            }
            Step::Drain { watch } => {
                let count = watches.len();
                match watches.get_mut(watch % count.max(1)) {
                    Some(watched) => watched.drain(&model).await,
                    None => continue,
                }
            }
            Step::Compact { back } => {
                let at = model.revision().saturating_sub(back).max(start);
                (
                    rendered(store.compact(at).await.map(|()| String::new())),
                    rendered(model.compact(at).await.map(|()| String::new())),
                )
            }
            Step::Reopen => {
                watches.clear();
                drop(store);
                subject.reopen().await;
                // A reopened store may keep more history than it must.
                let floor = model.floor();
                (rendered(subject.store().compact(floor).await.map(|()| String::new())), "".to_owned())
            }
        };
        prop_assert_eq!(real, ideal, "step {}: {:?}", number, step);
        prop_assert_eq!(subject.store().revision(), model.revision(), "after step {}: {:?}", number, step);
    }
    Ok(())
}

/// A watch of the real store, and how far it has come.
struct Watched {
    watch: Box<dyn Watch>,
    prefix: String,
    seen: Revision,
}

impl Watched {
    /// Drains the watch, and compares with the model's events.
    async fn drain(&mut self, model: &Model) -> (String, String) {
        let expected = model.events(&self.prefix, self.seen);
        let mut real = Vec::new();
        self.watch.request_progress();
        loop {
            match self.watch.next().await {
                Some(Notice::Events(events)) => real.extend(events),
                Some(Notice::Progress(revision)) => {
                    self.seen = revision;
                    break;
                }
                // It may end only when something after what it has seen is forgotten.
                Some(Notice::Compacted) | None if real.is_empty() && self.seen < model.floor() => {
                    return Default::default();
                }
                other => return (format!("{other:?} after {real:?}"), String::new()),
            }
        }
        (show_events(&real), show_events(&expected))
    }
}

fn value(number: usize, size: usize) -> Bytes {
    Bytes::from(format!("{number}-").repeat(size / 3))
}

fn expectation(model: &Model, key: &str, wrong: bool) -> Revision {
    let revision = model.peek(key).map_or(1, |entry| entry.revision);
    if wrong { revision + 1 } else { revision }
}

fn show(entry: &Entry) -> String {
    format!("{} {}@{}/{}", entry.key, entry.value_len(), entry.revision, entry.created)
}

fn show_events(events: &[Event]) -> String {
    let version = |entry: &Option<Arc<Entry>>| entry.as_ref().map_or("-".to_owned(), |entry| show(entry));
    let lines = events.iter().map(|event| {
        format!("{} {}: {} > {}", event.revision, key_of(event), version(&event.previous), version(&event.current))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn written(outcome: Result<Arc<Entry>, Error>) -> String {
    rendered(outcome.map(|entry| show(&entry)))
}

fn rendered(outcome: Result<String, Error>) -> String {
    outcome.unwrap_or_else(|error| match &error {
        Error::Conflict { current: Some(current), .. } => format!("{error}: {}", show(current)),
        error => error.to_string(),
    })
}

fn copy(error: &Error) -> Error {
    match error {
        Error::Compacted { requested, oldest } => Error::Compacted { requested: *requested, oldest: *oldest },
        Error::Future { requested, newest } => Error::Future { requested: *requested, newest: *newest },
        other => Error::Unavailable(other.to_string()),
    }
}

fn page(store: &dyn Store, range: &Range<'_>) -> String {
    rendered(store.peek_range(range).map(|page| {
        let entries: Vec<String> = page.entries.iter().map(|entry| show(entry)).collect();
        format!("{entries:?} at {} and {} more", page.revision, page.remaining)
    }))
}
