//! What every store must do, case by case. Each case gets an empty store and the root of its keys.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use knarr_store::{Error, Event, Notice, Range, Revision, Store, Watch};

use crate::model::key_of;

pub struct Subject {
    pub store: Arc<dyn Store>,
    pub root: String,
}

impl Subject {
    fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.root)
    }

    async fn create(&self, rest: &str, value: &str) -> Revision {
        self.store.create(&self.key(rest), text(value), None).await.expect("a create").revision
    }

    /// What a range holds, without the root.
    fn list(&self, rest: &str, at: Option<Revision>) -> Vec<String> {
        let prefix = self.key(rest);
        let page = self.store.peek_range(&Range { prefix: &prefix, at, ..Range::default() }).expect("a page");
        let show = |key: &str, value: &Bytes| format!("{}={}", &key[self.root.len()..], String::from_utf8_lossy(value));
        page.entries.iter().map(|entry| show(&entry.key, &entry.value())).collect()
    }

    fn watch(&self, rest: &str, after: Revision) -> Box<dyn Watch> {
        self.store.watch(&self.key(rest), after).expect("a watch")
    }
}

fn text(value: &str) -> Bytes {
    Bytes::copy_from_slice(value.as_bytes())
}

/// The next `count` events of a watch.
pub async fn events(watch: &mut dyn Watch, count: usize) -> Vec<Event> {
    let mut all = Vec::new();
    while all.len() < count {
        match tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("events in time") {
            Some(Notice::Events(events)) => all.extend(events),
            Some(Notice::Progress(_)) => {}
            other => panic!("{other:?} after {} of {count} events", all.len()),
        }
    }
    all
}

/// Runs all cases, each under its own key prefix.
pub async fn run(store: Arc<dyn Store>, root: &str) {
    let subject = |name: &str| Subject { store: store.clone(), root: format!("{root}{name}/") };
    writes_name_what_they_replace(subject("writes")).await;
    refusals_say_what_is_there(subject("refusals")).await;
    ranges_are_ordered_and_paged(subject("ranges")).await;
    the_past_stays_readable(subject("past")).await;
    watches_replay_and_continue(subject("watches")).await;
    watchers_of_a_crowd_miss_nothing(subject("crowd")).await;
    a_counter_counts_every_increment(subject("counter")).await;
    progress_follows_what_was_written(subject("progress")).await;
    revisions_can_be_waited_for(subject("reach")).await;
    large_values_and_odd_keys_survive(subject("odd")).await;
    compaction_is_reported_to_readers_and_watches(subject("compaction")).await;
}

async fn writes_name_what_they_replace(subject: Subject) {
    let (store, key) = (&subject.store, subject.key("a"));
    let created = store.create(&key, text("1"), None).await.expect("a create");
    assert_eq!(
        (created.created, created.revision, created.key.as_ref()),
        (created.revision, store.revision(), key.as_str())
    );
    let updated = store.update(&key, text("2"), created.revision, None).await.expect("an update");
    assert_eq!((updated.created, &updated.value()[..]), (created.revision, b"2".as_ref()));
    assert!(updated.revision > created.revision);
    assert_eq!(store.peek(&key).expect("the entry").revision, updated.revision);
    let deleted = store.delete(&key, updated.revision).await.expect("a delete");
    assert!(deleted > updated.revision && store.revision() >= deleted);
    assert!(store.peek(&key).is_none());
    let again = store.create(&key, text("3"), None).await.expect("a create after the delete");
    assert_eq!(again.created, again.revision);
}

async fn refusals_say_what_is_there(subject: Subject) {
    let (store, key, missing) = (&subject.store, subject.key("a"), subject.key("missing"));
    let revision = subject.create("a", "1").await;
    let before = store.revision();
    assert!(matches!(store.create(&key, text("2"), None).await, Err(Error::Exists(existing)) if *existing == *key));
    for wrong in [0, revision - 1, revision + 1] {
        for refused in [
            store.update(&key, text("2"), wrong, None).await.map(|entry| entry.revision),
            store.delete(&key, wrong).await,
        ] {
            let Err(Error::Conflict { expected, current: Some(current), .. }) = refused else { panic!("{refused:?}") };
            assert_eq!((expected, current.revision, &current.value()[..]), (wrong, revision, b"1".as_ref()));
        }
    }
    assert!(matches!(
        store.update(&missing, text("2"), revision, None).await,
        Err(Error::Conflict { current: None, .. })
    ));
    assert!(matches!(store.delete(&missing, revision).await, Err(Error::Conflict { current: None, .. })));
    assert_eq!(store.revision(), before, "a refusal uses no revision");
}

async fn ranges_are_ordered_and_paged(subject: Subject) {
    for name in ["pods/b", "pods/a", "nodes/x", "pods/a/c", "podsets/p"] {
        subject.create(name, name).await;
    }
    assert_eq!(subject.list("pods/", None), ["pods/a=pods/a", "pods/a/c=pods/a/c", "pods/b=pods/b"]);
    assert_eq!(subject.list("", None).len(), 5);
    assert_eq!(subject.list("none/", None).len(), 0);
    assert_eq!(subject.store.count(&subject.key("pods/")), 3);
    let (prefix, after) = (subject.key(""), subject.key("pods/a"));
    let page = subject
        .store
        .peek_range(&Range { prefix: &prefix, after: Some(&after), limit: 1, ..Range::default() })
        .expect("a page");
    assert_eq!(page.entries[0].key.as_ref(), subject.key("pods/a/c"));
    assert_eq!((page.entries.len(), page.remaining), (1, 2));
}

async fn the_past_stays_readable(subject: Subject) {
    let first = subject.create("a", "1").await;
    let second = subject.create("b", "1").await;
    let third = subject.store.update(&subject.key("a"), text("2"), first, None).await.expect("an update").revision;
    let fourth = subject.store.delete(&subject.key("b"), second).await.expect("a delete");
    for (at, expected) in [
        (first - 1, vec![]),
        (first, vec!["a=1"]),
        (second, vec!["a=1", "b=1"]),
        (third, vec!["a=2", "b=1"]),
        (fourth, vec!["a=2"]),
    ] {
        assert_eq!(subject.list("", Some(at)), expected, "at {at}");
    }
    let future = subject.store.peek_range(&Range { at: Some(fourth + 100), ..Range::default() });
    assert!(matches!(future, Err(Error::Future { .. })));
}

async fn watches_replay_and_continue(subject: Subject) {
    let start = subject.store.revision();
    let mut from_the_start = subject.watch("pods/", start);
    let first = subject.create("pods/a", "1").await;
    subject.create("nodes/n", "1").await;
    let mut from_first = subject.watch("pods/", first);
    let second =
        subject.store.update(&subject.key("pods/a"), text("2"), first, None).await.expect("an update").revision;
    let third = subject.store.delete(&subject.key("pods/a"), second).await.expect("a delete");
    let all = events(&mut *from_the_start, 3).await;
    assert_eq!(all.iter().map(|event| event.revision).collect::<Vec<_>>(), [first, second, third]);
    assert!(all[0].previous.is_none() && all[2].current.is_none());
    assert_eq!(&all[1].previous.as_ref().expect("the version before").value()[..], b"1");
    assert_eq!(all[2].previous.as_ref().expect("the version before").revision, second);
    let later = events(&mut *from_first, 2).await;
    assert_eq!(later.iter().map(|event| event.revision).collect::<Vec<_>>(), [second, third]);
}

async fn watchers_of_a_crowd_miss_nothing(subject: Subject) {
    const WRITERS: usize = 8;
    const WRITES: usize = 25;
    let start = subject.store.revision();
    let subject = Arc::new(subject);
    let watchers = (0..6).map(|number| {
        let mut watch = subject.watch(if number % 2 == 0 { "" } else { "w3/" }, start);
        tokio::spawn(async move { events(&mut *watch, if number % 2 == 0 { WRITERS * WRITES } else { WRITES }).await })
    });
    let watchers: Vec<_> = watchers.collect();
    let writers = (0..WRITERS).map(|writer| {
        let subject = subject.clone();
        tokio::spawn(async move {
            let mut written = Vec::new();
            for number in 0..WRITES {
                written.push((subject.create(&format!("w{writer}/{number}"), "x").await, writer, number));
            }
            written
        })
    });
    let mut written: Vec<_> =
        join_all(writers).await.into_iter().flat_map(|written| written.expect("a writer")).collect();
    written.sort_unstable();
    for (number, watcher) in join_all(watchers).await.into_iter().enumerate() {
        let seen = watcher.expect("a watcher").into_iter().map(|event| (event.revision, key_of(&event).to_owned()));
        let concerned = written.iter().filter(|(_, writer, _)| number % 2 == 0 || *writer == 3);
        let expected =
            concerned.map(|(revision, writer, number)| (*revision, subject.key(&format!("w{writer}/{number}"))));
        assert!(seen.eq(expected), "watcher {number} saw something else than was written");
    }
}

async fn a_counter_counts_every_increment(subject: Subject) {
    let subject = Arc::new(subject);
    subject.create("counter", "0").await;
    let counters = (0..8).map(|_| {
        let (store, key) = (subject.store.clone(), subject.key("counter"));
        tokio::spawn(async move {
            for _ in 0..5 {
                let mut entry = store.peek(&key).expect("the counter");
                loop {
                    let count: u32 = String::from_utf8_lossy(&entry.value()).parse().expect("a number");
                    match store.update(&key, text(&(count + 1).to_string()), entry.revision, None).await {
                        Ok(_) => break,
                        Err(Error::Conflict { current: Some(current), .. }) => entry = current,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        })
    });
    join_all(counters).await.into_iter().for_each(|counter| counter.expect("a counter"));
    assert_eq!(subject.list("", None), ["counter=40"]);
}

async fn progress_follows_what_was_written(subject: Subject) {
    let mut watch = subject.watch("pods/", subject.store.revision());
    let written = subject.create("pods/a", "1").await;
    let elsewhere = subject.create("nodes/a", "1").await;
    watch.request_progress();
    assert_eq!(events(&mut *watch, 1).await[0].revision, written);
    let progress = watch.next().await;
    assert!(matches!(progress, Some(Notice::Progress(revision)) if revision >= elsewhere), "{progress:?}");
}

async fn revisions_can_be_waited_for(subject: Subject) {
    let store = &subject.store;
    assert_eq!(store.sync().await.expect("a sync"), store.revision());
    let next = store.revision() + 1;
    assert!(matches!(store.reach(next, Duration::from_millis(1)).await, Err(Error::Future { .. })));
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.reach(next, Duration::from_secs(20)).await }
    });
    assert!(subject.create("a", "1").await >= next);
    waiting.await.expect("the waiting task").expect("the revision");
    assert!(matches!(store.watch(&subject.root, store.revision() + 100), Err(Error::Future { .. })));
}

async fn large_values_and_odd_keys_survive(subject: Subject) {
    let large = Bytes::from((0..1_000_000u32).map(|number| number as u8).collect::<Vec<_>>());
    let names = ["large", "with space", "ünïcödé/☃", "percent%2F", "dots..", "empty-value"];
    for name in names {
        let value = if name == "large" { large.clone() } else { Bytes::new() };
        subject.store.create(&subject.key(name), value.clone(), None).await.expect("a create");
        assert_eq!(subject.store.peek(&subject.key(name)).expect("the entry").value(), value, "{name}");
    }
    assert_eq!(subject.store.count(&subject.root), names.len());
}

async fn compaction_is_reported_to_readers_and_watches(subject: Subject) {
    let store = &subject.store;
    let first = subject.create("a", "1").await;
    let mut lagging = subject.watch("", first);
    let second = store.update(&subject.key("a"), text("2"), first, None).await.expect("an update").revision;
    let third = store.update(&subject.key("a"), text("3"), second, None).await.expect("an update").revision;
    assert!(matches!(store.compact(third + 100).await, Err(Error::Future { .. })));
    store.compact(second).await.expect("a compaction");
    store.compact(first).await.expect("a compaction of what is compacted");
    let past = store.peek_range(&Range { at: Some(first), ..Range::default() });
    assert!(matches!(past, Err(Error::Compacted { requested, oldest }) if (requested, oldest) == (first, second)));
    assert_eq!(subject.list("", Some(second)), ["a=2"]);
    assert_eq!(subject.list("", None), ["a=3"]);
    assert!(matches!(store.watch(&subject.root, first), Err(Error::Compacted { .. })));
    assert!(matches!(lagging.next().await, Some(Notice::Compacted)));
    assert!(lagging.next().await.is_none());
    assert_eq!(events(&mut *subject.watch("", second), 1).await[0].revision, third);
}
