use super::*;
use crate::contract::{Event, Notice, Scope};
use bytes::Bytes;

pub(super) fn put(key: &str, value: &str, created: Revision, revision: Revision) -> Change {
    let key: Arc<str> = key.into();
    let entry = Entry::new(key.clone(), Bytes::copy_from_slice(value.as_bytes()), created, revision);
    Change { key, revision, current: Some(Arc::new(entry)) }
}

pub(super) fn delete(key: &str, revision: Revision) -> Change {
    Change { key: key.into(), revision, current: None }
}

/// `/r/pods/a` is written at 2 and 4 and deleted at 6, `/r/pods/b` written at 3, `/r/nodes/n` at 5.
fn example() -> Arc<Index> {
    let index = Arc::new(Index::new(Vec::new(), 1, 0));
    let changes = [
        put("/r/pods/a", "1", 2, 2),
        put("/r/pods/b", "1", 3, 3),
        put("/r/pods/a", "2", 2, 4),
        put("/r/nodes/n", "1", 5, 5),
        delete("/r/pods/a", 6),
    ];
    for change in changes {
        let revision = change.revision;
        index.apply([change], revision).wake();
    }
    index
}

pub(super) fn show(page: &Page) -> Vec<String> {
    page.entries.iter().map(|entry| format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value()))).collect()
}

fn show_events(notice: &Notice) -> Vec<String> {
    let show = |entry: &Option<Arc<Entry>>| {
        entry.as_ref().map_or("-".to_owned(), |entry| String::from_utf8_lossy(&entry.value()).into_owned())
    };
    let Notice::Events(events) = notice else { return vec![format!("{notice:?}")] };
    events
        .iter()
        .map(|Event { revision, current, previous }| format!("{revision}:{}>{}", show(previous), show(current)))
        .collect()
}

#[test]
fn reads_at_every_revision() {
    let index = example();
    for (prefix, at, expected) in [
        ("/r/pods/", Some(1), vec![]),
        ("/r/pods/", Some(2), vec!["/r/pods/a=1"]),
        ("/r/pods/", Some(3), vec!["/r/pods/a=1", "/r/pods/b=1"]),
        ("/r/pods/", Some(4), vec!["/r/pods/a=2", "/r/pods/b=1"]),
        ("/r/", Some(5), vec!["/r/nodes/n=1", "/r/pods/a=2", "/r/pods/b=1"]),
        ("/r/", Some(6), vec!["/r/nodes/n=1", "/r/pods/b=1"]),
        ("", None, vec!["/r/nodes/n=1", "/r/pods/b=1"]),
        ("/r/pods/a", Some(4), vec!["/r/pods/a=2"]),
    ] {
        let page = index.range(&Range { prefix, at, ..Range::default() }).unwrap();
        assert_eq!(show(&page), expected, "{prefix} at {at:?}");
        assert_eq!(page.revision, at.unwrap_or(6));
    }
    assert!(matches!(
        index.range(&Range { at: Some(7), ..Range::default() }),
        Err(Error::Future { requested: 7, newest: 6 })
    ));
}

#[test]
fn pages_of_an_old_revision() {
    let index = example();
    let first = index.range(&Range { prefix: "/r/", limit: 2, at: Some(5), ..Range::default() }).unwrap();
    assert_eq!((show(&first), first.remaining), (vec!["/r/nodes/n=1".to_owned(), "/r/pods/a=2".to_owned()], 1));
    let rest =
        index.range(&Range { prefix: "/r/", limit: 2, at: Some(5), after: Some("/r/pods/a"), topic: None }).unwrap();
    assert_eq!((show(&rest), rest.remaining), (vec!["/r/pods/b=1".to_owned()], 0));
}

#[test]
fn compaction_forgets_only_the_past() {
    let index = example();
    index.compact(4).unwrap();
    assert!(matches!(
        index.range(&Range { at: Some(3), ..Range::default() }),
        Err(Error::Compacted { requested: 3, oldest: 4 })
    ));
    let page = index.range(&Range { prefix: "/r/pods/", at: Some(4), ..Range::default() }).unwrap();
    assert_eq!(show(&page), ["/r/pods/a=2", "/r/pods/b=1"]);
    assert!(matches!(index.watch(Scope::Prefix("/r/pods/"), 3), Err(Error::Compacted { .. })));
    assert!(matches!(index.watch(Scope::Prefix("/r/pods/"), 7), Err(Error::Future { .. })));
    assert!(index.watch(Scope::Prefix("/r/pods/"), 4).is_ok());
    assert!(matches!(index.compact(7), Err(Error::Future { .. })));
    index.compact(2).unwrap();
    assert_eq!(index.floor(), 4);
}

#[tokio::test]
async fn watches_deliver_what_they_are_about() {
    let index = example();
    for (prefix, after, expected) in [
        ("/r/pods/", 0, vec!["2:->1", "3:->1", "4:1>2", "6:2>-"]),
        ("/r/pods/", 3, vec!["4:1>2", "6:2>-"]),
        ("/r/pods/b", 1, vec!["3:->1"]),
        ("/r/", 4, vec!["5:->1", "6:2>-"]),
        ("", 0, vec!["2:->1", "3:->1", "4:1>2", "5:->1", "6:2>-"]),
        ("/r/none/", 0, vec!["Progress(6)"]),
    ] {
        let mut watch = index.watch(Scope::Prefix(prefix), after).unwrap();
        watch.request_progress();
        assert_eq!(show_events(&watch.next().await.unwrap()), expected, "{prefix} after {after}");
        if !prefix.contains("none") {
            assert_eq!(show_events(&watch.next().await.unwrap()), ["Progress(6)"]);
        }
    }
}

#[tokio::test]
async fn a_watch_that_lags_behind_the_floor_ends_but_an_idle_one_does_not() {
    let index = example();
    let mut lagging = index.watch(Scope::Prefix("/r/pods/"), 3).unwrap();
    let mut idle = index.watch(Scope::Prefix("/r/nodes/"), 5).unwrap();
    index.apply([put("/r/pods/c", "1", 7, 7)], 7).wake();
    index.compact(7).unwrap();
    assert!(matches!(lagging.next().await, Some(Notice::Compacted)));
    assert!(lagging.next().await.is_none());
    idle.request_progress();
    assert!(matches!(idle.next().await, Some(Notice::Progress(7))));
}

#[tokio::test]
async fn a_waiting_watch_is_woken_and_a_closed_index_ends_it() {
    let index = example();
    for prefix in ["/r/pods/", ""] {
        let mut watch = index.watch(Scope::Prefix(prefix), index.revision()).unwrap();
        let waiting = tokio::spawn(async move { (watch.next().await, watch) });
        tokio::task::yield_now().await;
        let revision = index.revision() + 1;
        index.apply([put("/r/pods/d", "1", revision, revision)], revision).wake();
        let (notice, _) = waiting.await.unwrap();
        assert!(matches!(notice, Some(Notice::Events(events)) if events[0].revision == revision));
    }
    let mut watch = index.watch(Scope::Prefix("/r/pods/"), index.revision()).unwrap();
    let waiting = tokio::spawn(async move { watch.next().await });
    tokio::task::yield_now().await;
    index.close();
    assert!(waiting.await.unwrap().is_none());
}

#[tokio::test]
async fn much_history_comes_in_pieces_that_split_no_revision() {
    let index = Arc::new(Index::new(Vec::new(), 1, 0));
    for revision in 2..=1500 {
        let changes = [
            put(&format!("/r/pods/{revision}"), "1", revision, revision),
            put(&format!("/r/nodes/{revision}"), "1", revision, revision),
        ];
        index.apply(changes, revision).wake();
    }
    for (prefix, per_revision) in [("/r/pods/", 1), ("", 2)] {
        let mut watch = index.watch(Scope::Prefix(prefix), 1).unwrap();
        let (mut next, mut pieces) = (2, 0);
        while next <= 1500 {
            let Some(Notice::Events(events)) = watch.next().await else { panic!("the watch ended at {next}") };
            pieces += 1;
            for same in events.chunks(per_revision) {
                assert!(same.iter().all(|event| event.revision == next), "at {next}");
                next += 1;
            }
        }
        assert!((2..=4).contains(&pieces), "{pieces} pieces");
    }
}

#[tokio::test]
async fn large_changes_come_in_notices_of_few_bytes() {
    let index = Arc::new(Index::new(Vec::new(), 1, 0));
    let value = "x".repeat(100 * 1024);
    for revision in 2..=41 {
        index.apply([put(&format!("/r/pods/{revision}"), &value, revision, revision)], revision).wake();
    }
    // One change that is larger than a notice.
    index.apply([put("/r/nodes/large", &"x".repeat(watch::MAX_BYTES + 1), 42, 42)], 42).wake();
    for prefix in ["/r/pods/", ""] {
        let mut watch = index.watch(Scope::Prefix(prefix), 1).unwrap();
        let mut next = 2;
        while next <= if prefix.is_empty() { 42 } else { 41 } {
            let Some(Notice::Events(events)) = watch.next().await else { panic!("the watch ended at {next}") };
            assert!(events.len() <= 3, "{} events", events.len());
            for event in events {
                assert_eq!(event.revision, next);
                next += 1;
            }
        }
    }
}

#[test]
fn a_range_is_weighed_up_to_a_limit() {
    let index = Index::new(Vec::new(), 1, 0);
    for revision in 2..=11 {
        index.apply([put(&format!("/r/pods/{revision:02}"), "0123456789", revision, revision)], revision).wake();
    }
    for (prefix, limit, max, bytes) in
        [("/r/pods/", 0, 1000, 100), ("/r/pods/", 3, 1000, 30), ("/r/pods/", 0, 45, 45), ("/r/nodes/", 0, 45, 0)]
    {
        let range = Range { prefix, limit, ..Range::default() };
        assert_eq!(index.weigh(&range, max), bytes, "{prefix} {limit} {max}");
    }
}

#[tokio::test]
async fn a_reset_ends_watches_that_missed_something() {
    let index = example();
    let mut watch = index.watch(Scope::Prefix("/r/pods/"), 6).unwrap();
    index.reset(vec![Arc::new(Entry::new("/r/pods/z".into(), Bytes::new(), 9, 9))], 10);
    assert!(matches!(watch.next().await, Some(Notice::Compacted)));
    assert_eq!(show(&index.range(&Range::default()).unwrap()), ["/r/pods/z="]);
    assert!(index.watch(Scope::Prefix("/r/pods/"), 10).is_ok());
}

#[tokio::test(start_paused = true)]
async fn reaching_a_revision_waits_until_a_timeout() {
    let index = example();
    assert!(index.reach(6, Duration::ZERO).await.is_ok());
    assert!(matches!(index.reach(7, Duration::from_secs(3)).await, Err(Error::Future { requested: 7, newest: 6 })));
    let waiting = tokio::spawn({
        let index = index.clone();
        async move { index.reach(7, Duration::from_secs(3)).await }
    });
    tokio::task::yield_now().await;
    index.apply([], 7).wake();
    assert!(waiting.await.unwrap().is_ok());
}

#[test]
fn history_within_bytes() {
    let index = example();
    assert_eq!(index.history_within(usize::MAX), 0);
    assert_eq!(index.history_within(0), 6);
}
