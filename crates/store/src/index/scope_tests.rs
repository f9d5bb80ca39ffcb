use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use super::tests::{delete, put};
use super::*;
use crate::contract::{Event, Notice};

/// A topic is the value up to a colon; that of a value without one is unknown.
const TOPICS: TopicIndex = TopicIndex {
    group: "/r/pods/",
    topic_of: |value| Some(std::str::from_utf8(value).ok()?.split_once(':')?.0.to_owned()),
};

#[test]
fn entries_are_found_by_topic() {
    let index = Arc::new(Index::new(Vec::new(), 1, 0));
    index.apply([put("/r/pods/x/a", "n:1", 2, 2), put("/r/pods/y/b", "m:1", 2, 2)], 2).wake();
    index.index_topics(TOPICS);
    index.apply([put("/r/pods/x/c", "n:1", 3, 3), put("/r/pods/y/d", "unknown", 3, 3)], 3).wake();
    let found = |prefix: &str, topic: &str, limit: usize| {
        let range = Range { prefix, topic: Some(topic), limit, ..Range::default() };
        let page = index.range(&range).unwrap();
        (
            page.entries.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>(),
            page.remaining,
            index.weigh(&range, 100),
        )
    };
    let expected = |keys: &[&str], remaining, bytes| {
        (keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>(), remaining, bytes)
    };
    assert_eq!(found("/r/pods/", "n", 0), expected(&["/r/pods/x/a", "/r/pods/x/c", "/r/pods/y/d"], 0, 13));
    assert_eq!(found("/r/pods/", "n", 1), expected(&["/r/pods/x/a"], 2, 3));
    assert_eq!(found("/r/pods/y/", "m", 0), expected(&["/r/pods/y/b", "/r/pods/y/d"], 0, 10));
    assert_eq!(found("/r/pods/x/", "none", 0), expected(&[], 0, 0));
    // Moved, made known and deleted.
    let moved = [put("/r/pods/x/a", "m:2", 2, 4), put("/r/pods/y/d", "m:2", 3, 4), delete("/r/pods/x/c", 4)];
    index.apply(moved, 4).wake();
    assert_eq!(found("/r/pods/", "n", 0), expected(&[], 0, 0));
    assert_eq!(found("/r/pods/", "m", 0), expected(&["/r/pods/x/a", "/r/pods/y/b", "/r/pods/y/d"], 0, 9));
    // The past is read without the index.
    let past = Range { prefix: "/r/pods/", topic: Some("n"), at: Some(3), ..Range::default() };
    assert_eq!(index.range(&past).unwrap().entries.len(), 4);
    index.reset(vec![Arc::new(Entry::new("/r/pods/x/z".into(), "n:9".into(), 9, 9))], 9);
    assert_eq!(found("/r/pods/", "n", 0), expected(&["/r/pods/x/z"], 0, 3));
}

/// Watches of every scope, opened at every revision, deliver the changes that a watch of the group delivers in that scope.
#[tokio::test]
async fn narrow_watches_deliver_what_wide_ones_do() {
    let index = Arc::new(Index::new(Vec::new(), 1, 0));
    index.index_topics(TOPICS);
    let scopes = [
        Scope::Prefix("/r/pods/x/"),
        Scope::Prefix("/r/pods/"),
        Scope::Key("/r/pods/x/k1"),
        Scope::Topic { prefix: "/r/pods/", topic: "n0" },
        Scope::Topic { prefix: "/r/pods/x/", topic: "n1" },
        Scope::Topic { prefix: "/r/nodes/", topic: "not indexed" },
        Scope::Distinct("/r/pods/"),
        Scope::Distinct("/r/pods/y/"),
    ];
    let mut watches = Vec::new();
    for revision in 2..200_u64 {
        for scope in scopes {
            // Of the newest revision, and of older ones, for which the log of the scope has to be extended.
            let after =
                if revision % 7 == 0 { (revision - 1).saturating_sub(revision % 31).max(1) } else { revision - 1 };
            watches.push((scope, after, index.watch(scope, after).unwrap()));
        }
        let random = revision.wrapping_mul(2_654_435_761) >> 7;
        let namespace = if random.is_multiple_of(2) { "x" } else { "y" };
        let key = format!("/r/pods/{namespace}/k{}", random / 2 % 5);
        let topic = format!("n{}", random / 16 % 3);
        let change = match random / 64 % 6 {
            0 => delete(&key, revision),
            1 => put(&key, "unknown", revision, revision),
            _ => put(&key, &format!("{topic}:{revision}"), revision, revision),
        };
        index.apply([change], revision).wake();
    }
    let mut wide = index.watch(Scope::Prefix("/r/"), 1).unwrap();
    let Some(Notice::Events(all)) = wide.next().await else { panic!("no events") };
    for (scope, after, mut watch) in watches {
        let concerns = |event: &&Event| {
            let entries = [&event.previous, &event.current].into_iter().flatten();
            let key = &entries.clone().next().unwrap().key;
            event.revision > after
                && key.starts_with(scope.prefix())
                && match scope {
                    Scope::Prefix(_) => true,
                    Scope::Key(own) => **key == *own,
                    Scope::Topic { topic, .. } => entries
                        .into_iter()
                        .any(|entry| (TOPICS.topic_of)(&entry.value()).is_none_or(|own| own == topic)),
                    Scope::Distinct(_) => {
                        let topic_of =
                            |entry: &Option<Arc<Entry>>| entry.as_ref().map(|entry| (TOPICS.topic_of)(&entry.value()));
                        let (before, after) = (topic_of(&event.previous), topic_of(&event.current));
                        before != after || before == Some(None)
                    }
                }
        };
        let expected: Vec<u64> = all.iter().filter(concerns).map(|event| event.revision).collect();
        watch.request_progress();
        let mut delivered = Vec::new();
        while let Some(Notice::Events(events)) = watch.next().await {
            delivered.extend(events.iter().map(|event| event.revision));
        }
        assert_eq!(delivered, expected, "{scope:?} after {after}");
    }
}

#[test]
fn a_change_wakes_only_the_watches_of_its_scope() {
    let index = Arc::new(Index::new(Vec::new(), 1, 0));
    index.index_topics(TOPICS);
    let concerned = [
        Scope::Key("/r/pods/x/a"),
        Scope::Prefix("/r/pods/x/"),
        Scope::Topic { prefix: "/r/pods/", topic: "n" },
        Scope::Prefix("/r/pods/"),
    ];
    let others = [
        Scope::Key("/r/pods/x/b"),
        Scope::Prefix("/r/pods/y/"),
        Scope::Topic { prefix: "/r/pods/", topic: "m" },
        Scope::Prefix("/r/nodes/"),
    ];
    let (concerned, others) =
        (concerned.map(|scope| Waiting::new(&index, scope)), others.map(|scope| Waiting::new(&index, scope)));
    index.apply([put("/r/pods/x/a", "n:1", 2, 2)], 2).wake();
    assert!(concerned.iter().all(Waiting::is_woken));
    assert!(!others.iter().any(Waiting::is_woken));
    index.close();
    assert!(others.iter().all(Waiting::is_woken));
}

#[test]
fn scopes_without_watches_are_dropped() {
    let index = Arc::new(Index::new(Vec::new(), 1, 0));
    let names: Vec<String> = (0..5000).map(|at| format!("/r/pods/x/{at}")).collect();
    let kept = index.watch(Scope::Key("/r/pods/x/kept"), 1).unwrap();
    for name in &names {
        drop(index.watch(Scope::Key(name), 1).unwrap());
    }
    assert!(index.state.read().groups().len() < 2000);
    index.apply([put("/r/pods/x/a", "1", 2, 2)], 2).wake();
    index.compact(2).unwrap();
    assert_eq!(index.state.read().groups().len(), 2, "the group and the scope that is watched");
    drop(kept);
}

/// A watch that waits for a change.
struct Waiting {
    woken: Arc<Flag>,
    _next: std::pin::Pin<Box<dyn Future<Output = bool>>>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl std::task::Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Waiting {
    fn new(index: &Arc<Index>, scope: Scope<'_>) -> Waiting {
        let mut watch = index.watch(scope, 1).unwrap();
        let mut next = Box::pin(async move { watch.next().await.is_some() });
        let woken = Arc::<Flag>::default();
        let polled = next.as_mut().poll(&mut Context::from_waker(&woken.clone().into()));
        assert_eq!(polled, Poll::Pending);
        Waiting { woken, _next: next }
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed)
    }
}
