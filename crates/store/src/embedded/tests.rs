use bytes::Bytes;

use super::store::MAX_VALUE_BYTES;
use super::*;
use crate::contract::{Notice, Store, StoreStatus};

fn open(directory: &Path) -> Embedded {
    Embedded::open(directory, Options::default()).unwrap()
}

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[tokio::test]
async fn writes_are_there_after_opening_again_with_their_history() {
    let directory = tempfile::tempdir().unwrap();
    {
        let store = open(directory.path());
        let created = store.create("/r/pods/a", value("1"), None).await.unwrap();
        assert_eq!((created.created, created.revision), (2, 2));
        let updated = store.update("/r/pods/a", value("2"), 2, None).await.unwrap();
        assert_eq!((updated.created, updated.revision), (2, 3));
        store.create("/r/pods/b", value("1"), None).await.unwrap();
        assert_eq!(store.delete("/r/pods/b", 4).await.unwrap(), 5);
    }
    let store = open(directory.path());
    assert_eq!(store.revision(), 5);
    let entry = store.peek("/r/pods/a").unwrap();
    assert_eq!((&entry.value()[..], entry.created, entry.revision), (b"2".as_ref(), 2, 3));
    assert!(store.peek("/r/pods/b").is_none());
    let past = store.peek_range(&Range { prefix: "/r/pods/", at: Some(4), ..Range::default() }).unwrap();
    assert_eq!(past.entries.len(), 2);
    let mut watch = store.watch("/r/pods/", 2).unwrap();
    let Some(Notice::Events(events)) = watch.next().await else { panic!("no events") };
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [3, 4, 5]);
}

#[tokio::test]
async fn deferrable_updates_become_durable_with_and_without_other_writes() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { deferrable: Some("/r/leases/"), ..Options::default() };
    let store = Embedded::open(directory.path(), options).unwrap();
    let mut leases = Vec::new();
    for number in 0..50 {
        leases.push(store.create(&format!("/r/leases/{number}"), value("1"), None).await.unwrap());
    }
    let renewals = leases.iter().map(|lease| store.update(&lease.key, value("2"), lease.revision, None));
    let renewed = futures::future::join_all(renewals).await;
    assert!(renewed.iter().all(Result::is_ok), "what waits is written in the end");
    // A write that does not wait takes those that do along.
    let lease = store.peek("/r/leases/0").unwrap();
    let (renewal, creation) = tokio::join!(
        store.update(&lease.key, value("3"), lease.revision, None),
        store.create("/r/pods/a", value("1"), None)
    );
    assert_eq!(creation.unwrap().revision, renewal.unwrap().revision + 1);
    assert_eq!(store.shared.pending.lock().deferral(), None, "nothing is left to be written");
}

#[tokio::test]
async fn wrong_expectations_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.create("/r/pods/a", value("1"), None).await.unwrap();
    assert!(matches!(store.create("/r/pods/a", value("2"), None).await, Err(Error::Exists(_))));
    let conflict = store.update("/r/pods/a", value("2"), 9, None).await;
    assert!(
        matches!(conflict, Err(Error::Conflict { expected: 9, current: Some(current), .. }) if current.revision == 2)
    );
    assert!(matches!(store.delete("/r/pods/x", 2).await, Err(Error::Conflict { current: None, .. })));
    assert_eq!(store.revision(), 2);
}

#[tokio::test]
async fn the_largest_value_is_kept_and_a_larger_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    {
        let store = open(directory.path());
        store.create("/r/pods/a", Bytes::from(vec![1; MAX_VALUE_BYTES]), None).await.unwrap();
        let refused = store.create("/r/pods/b", Bytes::from(vec![1; MAX_VALUE_BYTES + 1]), None).await;
        assert!(matches!(refused, Err(Error::TooLarge { max: MAX_VALUE_BYTES, .. })));
    }
    assert_eq!(open(directory.path()).peek("/r/pods/a").unwrap().value_len(), MAX_VALUE_BYTES);
}

#[tokio::test]
async fn many_writers_share_syncs_and_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    {
        let store = Arc::new(open(directory.path()));
        let writers = (0..64).map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0..10 {
                    store.create(&format!("/r/pods/{writer}-{number}"), value("x"), None).await.unwrap();
                }
            })
        });
        futures::future::join_all(writers).await.into_iter().for_each(|joined| joined.unwrap());
    }
    let store = open(directory.path());
    assert_eq!((store.count("/r/pods/"), store.revision()), (640, 641));
}

#[tokio::test]
async fn a_second_opening_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _store = open(directory.path());
    let second = Embedded::open(directory.path(), Options::default());
    assert!(matches!(second.err(), Some(Error::Open(message)) if message.contains("in use by another process")));
}

#[tokio::test]
async fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let store = open(&directory);
    store.create("/r/pods/a", value("1"), None).await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for file in std::fs::read_dir(&directory).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}

#[tokio::test]
async fn a_checkpoint_replaces_the_log_before_the_floor() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options { segment_bytes: 4096, ..Options::default() };
    let names = || {
        let mut names = RealDisk.list(directory.path()).unwrap();
        names.sort();
        names
    };
    {
        let store = Embedded::open(directory.path(), options()).unwrap();
        let mut entry = store.create("/r/pods/a", Bytes::from(vec![b'x'; 1000]), None).await.unwrap();
        for _ in 0..50 {
            entry = store.update("/r/pods/a", Bytes::from(vec![b'y'; 1000]), entry.revision, None).await.unwrap();
        }
        assert!(names().iter().filter(|name| name.starts_with("log")).count() > 8);
        store.compact(40).await.unwrap();
    }
    let left = names();
    assert!(left.contains(&"image-00000000000000000040".to_owned()), "{left:?}");
    assert!(left.iter().filter(|name| name.starts_with("log")).count() <= 5, "{left:?}");
    let store = Embedded::open(directory.path(), options()).unwrap();
    assert_eq!((store.revision(), store.peek("/r/pods/a").unwrap().revision), (52, 52));
    assert!(store.watch("/r/pods/", 40).is_ok());
    assert!(matches!(store.watch("/r/pods/", 39), Err(Error::Compacted { .. })));
    assert_eq!(store.peek_range(&Range { at: Some(45), ..Range::default() }).unwrap().entries[0].revision, 45);
}

struct ManualClock(std::sync::atomic::AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[tokio::test]
async fn entries_end_when_their_time_has_come_also_after_opening_again() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock(1_000_000.into()));
    let options = || Options { clock: clock.clone(), ..Options::default() };
    let hour = Some(Duration::from_secs(3600));
    {
        let store = Embedded::open(directory.path(), options()).unwrap();
        store.create("/r/events/a", value("1"), hour).await.unwrap();
        store.create("/r/events/b", value("1"), hour).await.unwrap();
        clock.0.fetch_add(1_800_000, std::sync::atomic::Ordering::SeqCst);
        store.update("/r/events/b", value("2"), 3, hour).await.unwrap();
        store.create("/r/events/c", value("1"), None).await.unwrap();
    }
    let store = Embedded::open(directory.path(), options()).unwrap();
    for (step, gone, left) in [(1_800_000, "/r/events/a", 2), (1_800_000, "/r/events/b", 1)] {
        let mut watch = store.watch("/r/events/", store.revision()).unwrap();
        clock.0.fetch_add(step, std::sync::atomic::Ordering::SeqCst);
        store.expire();
        let Some(Notice::Events(events)) = watch.next().await else { panic!("no event") };
        assert_eq!(events.len(), 1);
        assert!(events[0].current.is_none());
        assert_eq!(events[0].previous.as_ref().unwrap().key.as_ref(), gone);
        assert_eq!(store.count("/r/events/"), left);
    }
}

#[tokio::test]
async fn an_exceeded_quota_refuses_growth_and_lets_deletions_pass() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options { quota_bytes: 100_000, ..Options::default() };
    let store = Embedded::open(directory.path(), options()).unwrap();
    let large = || Bytes::from(vec![b'x'; 10_000]);
    let mut count = 0;
    let refusal = loop {
        match store.create(&format!("/r/pods/{count}"), large(), None).await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refusal.to_string(), "etcdserver: mvcc: database space exceeded");
    assert_eq!(count, 9);
    let status = store.status();
    assert_eq!((status.failure, status.quota), (None, Some(100_000)), "the store works");
    assert!(status.bytes.unwrap() > 90_000);
    assert!(status.alarm.unwrap().contains("database space exceeded"));
    let entry = store.peek("/r/pods/0").unwrap();
    let updated = store.update("/r/pods/0", large(), entry.revision, None).await.unwrap();
    let grown = Bytes::from(vec![b'x'; 40_000]);
    assert!(matches!(store.update("/r/pods/0", grown, updated.revision, None).await, Err(Error::SpaceExceeded)));
    drop(store);
    let store = Embedded::open(directory.path(), options()).unwrap();
    assert!(matches!(store.create("/r/pods/z", large(), None).await, Err(Error::SpaceExceeded)));
    store.delete("/r/pods/0", updated.revision).await.unwrap();
    assert!(store.status().alarm.is_none(), "there is room again");
    store.create("/r/pods/z", large(), None).await.unwrap();
}

#[tokio::test]
async fn a_failed_store_reports_why() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(open(directory.path()));
    assert_eq!(store.status(), StoreStatus { bytes: Some(0), ..StoreStatus::default() });
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.failed().await }
    });
    store.shared.stop_writes("the writer panicked: test".to_owned());
    assert_eq!(waiting.await.unwrap(), "the writer panicked: test");
    assert!(matches!(store.create("/r/pods/a", value("1"), None).await, Err(Error::Unavailable(_))));
    assert!(store.status().failure.is_some());
}
