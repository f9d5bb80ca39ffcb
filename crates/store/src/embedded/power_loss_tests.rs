//! Lost power and kills: nothing that was acknowledged or seen is lost.

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fake_disk::{EIO, FakeDisk, Fault, Operation, directory, open};
use super::log::log_name;
use super::*;
use crate::contract::{Notice, Store};

#[tokio::test]
async fn nothing_is_seen_before_it_is_durable() {
    for sync_fails in [false, true] {
        let disk = FakeDisk::default();
        let store = open(&disk, 1 << 20).unwrap();
        let mut watch = store.watch("/r/pods/", store.revision()).unwrap();
        disk.hold_syncs();
        if sync_fails {
            disk.plan(Fault { operation: Operation::Sync, nth: 0, code: EIO, written: 0 });
        }
        // The second is refused because of the first, so its refusal reveals the first.
        let mut first = store.create("/r/pods/a", Bytes::from("1"), None);
        let mut second = store.create("/r/pods/a", Bytes::from("2"), None);
        let mut third = store.update("/r/pods/a", Bytes::from("3"), 2, None);
        for write in [&mut first, &mut second, &mut third] {
            assert!(futures::poll!(write).is_pending());
        }
        assert!(store.peek("/r/pods/a").is_none());
        assert_eq!((store.revision(), store.count("")), (1, 0));
        assert!(futures::poll!(watch.next()).is_pending());
        disk.release_syncs();
        if sync_fails {
            assert!(matches!(first.await, Err(Error::Unavailable(_))));
            assert!(matches!(second.await, Err(Error::Unavailable(_))));
            assert!(matches!(third.await, Err(Error::Unavailable(_))));
            assert!(store.peek("/r/pods/a").is_none());
        } else {
            assert_eq!(first.await.unwrap().revision, 2);
            assert!(matches!(second.await, Err(Error::Exists(_))));
            assert_eq!(third.await.unwrap().revision, 3);
            assert!(matches!(watch.next().await, Some(Notice::Events(_))));
        }
    }
}

#[tokio::test]
async fn what_was_served_after_a_kill_also_survives_lost_power() {
    let disk = FakeDisk::default();
    let store = open(&disk, 1 << 20).unwrap();
    let path = directory().join(log_name(2));
    let before = disk.content(&path).len();
    disk.hold_syncs();
    let mut write = store.create("/r/pods/a", Bytes::from(vec![b'x'; 2000]), None);
    assert!(futures::poll!(&mut write).is_pending());
    while disk.content(&path).len() == before {
        tokio::task::yield_now().await;
    }
    // Killed here: what was written but not synced is found by the next process.
    let killed = disk.copy();
    disk.release_syncs();
    write.await.unwrap();
    drop(store);
    let store = open(&killed, 1 << 20).unwrap();
    assert_eq!(store.count(""), 1);
    for seed in 0..20 {
        let dark = killed.after_power_loss(&mut StdRng::seed_from_u64(seed));
        assert_eq!(open(&dark, 1 << 20).unwrap().count(""), 1, "seed {seed}");
    }
}

/// What is known to be durable: by revision, the key and its value, or `None` for a deletion.
type Known = BTreeMap<Revision, (String, Option<Bytes>)>;

/// Writes from several tasks at once until the power goes, and returns what was acknowledged.
async fn write_until_dark(store: Arc<Embedded>, random: &mut StdRng) -> Known {
    let compaction =
        random.random_bool(0.5).then(|| random.random_range(store.shared.index.floor()..=store.revision()));
    let tasks = (0..4).map(|task| {
        let (store, mut random) = (store.clone(), StdRng::seed_from_u64(random.random()));
        tokio::spawn(async move {
            let mut known = Known::new();
            for step in 0..1000 {
                if let (0, 5, Some(floor)) = (task, step, compaction) {
                    store.compact(floor).await.unwrap();
                }
                let key = format!("/r/{}/{}", ["pods", "nodes"][task % 2], random.random_range(0..20));
                let value = Bytes::from(vec![random.random(); random.random_range(0..1500)]);
                let written = match store.peek(&key) {
                    None => store.create(&key, value.clone(), None).await.map(|entry| (entry.revision, Some(value))),
                    Some(entry) if random.random_bool(0.3) => {
                        store.delete(&key, entry.revision).await.map(|revision| (revision, None))
                    }
                    Some(entry) => {
                        let updated = store.update(&key, value.clone(), entry.revision, None).await;
                        updated.map(|entry| (entry.revision, Some(value)))
                    }
                };
                match written {
                    Ok((revision, value)) => drop(known.insert(revision, (key, value))),
                    Err(Error::Exists(_) | Error::Conflict { .. }) => {}
                    Err(_) => break,
                }
            }
            known
        })
    });
    let known = futures::future::join_all(tasks).await;
    known.into_iter().flat_map(|known| known.unwrap()).collect()
}

/// Everything the store remembers, checked to be without gap.
async fn remembered(store: &Embedded) -> Known {
    let (floor, newest) = (store.shared.index.floor().max(1), store.revision());
    let mut watch = store.watch("", floor).unwrap();
    let mut known = Known::new();
    while known.keys().next_back().copied().unwrap_or(floor) < newest {
        let Some(Notice::Events(events)) = watch.next().await else { panic!("the history ends early") };
        for event in events {
            let key = event.current.as_ref().or(event.previous.as_ref()).unwrap().key.to_string();
            let value = event.current.as_ref().map(|entry| entry.value());
            assert!(known.insert(event.revision, (key, value)).is_none(), "{} came twice", event.revision);
        }
    }
    assert!(known.keys().copied().eq(floor + 1..=newest), "a revision is missing");
    known
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_power_loses_nothing_that_was_acknowledged() {
    for seed in 0..150 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut disk = FakeDisk::default();
        let mut known = Known::new();
        for round in 0..5 {
            disk.cut_power_after(random.random_range(5..120));
            if let Ok(store) = open(&disk, 4000) {
                known.extend(write_until_dark(Arc::new(store), &mut random).await);
            }
            disk = disk.after_power_loss(&mut random);
            let store = open(&disk, 4000).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            let remembered = remembered(&store).await;
            for (revision, change) in known.range(store.shared.index.floor() + 1..) {
                assert_eq!(remembered.get(revision), Some(change), "seed {seed}, round {round}, revision {revision}");
            }
            // What had not been acknowledged but is there now stays there.
            known.extend(remembered);
            let mut state = BTreeMap::new();
            for (key, value) in known.values() {
                state.insert(key.clone(), value.clone());
            }
            state.retain(|_, value| value.is_some());
            let page = store.peek_range(&Range::default()).unwrap();
            let present: BTreeMap<_, _> =
                page.entries.iter().map(|entry| (entry.key.to_string(), Some(entry.value()))).collect();
            assert!(present == state, "seed {seed}, round {round}: the entries are not what the history says");
            drop(store);
            disk = disk.copy();
        }
    }
}
