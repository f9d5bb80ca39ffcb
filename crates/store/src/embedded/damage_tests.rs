//! Damaged files, failing and full disks, lost power: an error that names the trouble, or nothing lost.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fake_disk::{FakeDisk, Fault, Operation};
use super::frame::HEADER;
use super::log::log_name;
use super::*;
use crate::contract::Notice;

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn directory() -> &'static Path {
    Path::new("/store")
}

fn open(disk: &FakeDisk, segment_bytes: u64) -> Result<Embedded, Error> {
    Embedded::open(directory(), Options { segment_bytes, disk: Arc::new(disk.clone()), ..Options::default() })
}

/// A disk as a killed process left it after six creates of one frame each, and where its frames start.
async fn killed_store() -> (FakeDisk, PathBuf, Vec<u8>, Vec<usize>) {
    let disk = FakeDisk::default();
    let store = open(&disk, 1 << 20).unwrap();
    let path = directory().join(log_name(2));
    let mut starts = Vec::new();
    for number in 0..6 {
        starts.push(disk.content(&path).len());
        let value = Bytes::from(vec![b'a' + number; 20 + 300 * usize::from(number)]);
        store.create(&format!("/r/pods/{number}"), value, None).await.unwrap();
    }
    let left = disk.copy();
    drop(store);
    let content = left.content(&path);
    (left, path, content, starts)
}

#[tokio::test]
async fn a_log_cut_anywhere_keeps_every_whole_write() {
    let (disk, path, content, starts) = killed_store().await;
    for length in 0..=content.len() {
        let cut = disk.with(&path, content[..length].to_vec());
        let store = open(&cut, 1 << 20).unwrap_or_else(|error| panic!("cut to {length}: {error}"));
        let whole = starts.iter().skip(1).chain([&content.len()]).filter(|end| **end <= length).count();
        assert_eq!((store.count(""), store.revision()), (whole, 1 + whole as u64), "cut to {length}");
        store.create("/r/pods/next", Bytes::new(), None).await.unwrap();
        drop(store);
        assert_eq!(open(&cut, 1 << 20).unwrap().count(""), whole + 1, "cut to {length} and written to");
    }
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_told_with_file_and_offset() {
    let (disk, path, content, starts) = killed_store().await;
    for offset in 0..content.len() {
        let frame = starts.iter().rev().find(|start| **start <= offset).copied().unwrap_or(0);
        let in_header = offset < frame + HEADER;
        for bit in 0..8 {
            if !in_header && bit != offset % 8 {
                continue;
            }
            let mut flipped = content.clone();
            flipped[offset] ^= 1 << bit;
            let error = open(&disk.with(&path, flipped), 1 << 20).err();
            let expected = format!("{} at offset {frame}:", path.display());
            assert!(
                matches!(&error, Some(Error::Corrupt(message)) if message.contains(&expected)),
                "bit {bit} of {offset}, in the frame at {frame}: {error:?}"
            );
        }
    }
}

#[tokio::test]
async fn missing_sectors_are_a_torn_write_only_at_the_end() {
    let (disk, path, content, starts) = killed_store().await;
    let last = *starts.last().unwrap();
    for start in (0..content.len()).step_by(512) {
        let mut holed = content.clone();
        let end = (start + 512).min(content.len());
        holed[start.max(last.min(end))..end].fill(0);
        if start + 512 <= last {
            holed[start..end].fill(0);
        }
        let opened = open(&disk.with(&path, holed), 1 << 20);
        if start + 512 <= last {
            assert!(matches!(opened.err(), Some(Error::Corrupt(_))), "sector at {start}");
        } else {
            assert_eq!(opened.unwrap().revision(), 6, "sector at {start}");
        }
    }
}

#[tokio::test]
async fn damage_after_a_clean_close_is_never_taken_for_a_torn_write() {
    let disk = FakeDisk::default();
    let path = directory().join(log_name(2));
    let store = open(&disk, 1 << 20).unwrap();
    let start = disk.content(&path).len();
    store.create("/r/pods/a", Bytes::from(vec![0; 2000]), None).await.unwrap();
    drop(store);
    let content = disk.content(&path);
    for offset in start..content.len() - HEADER {
        let mut flipped = content.clone();
        flipped[offset] ^= 0x10;
        assert!(matches!(open(&disk.with(&path, flipped), 1 << 20).err(), Some(Error::Corrupt(_))), "byte {offset}");
    }
}

#[tokio::test]
async fn a_missing_or_damaged_file_before_the_last_is_told() {
    let disk = FakeDisk::default();
    let store = open(&disk, 1000).unwrap();
    for number in 0..10 {
        store.create(&format!("/r/pods/{number}"), Bytes::from(vec![b'x'; 600]), None).await.unwrap();
    }
    drop(store);
    let mut logs = disk.list(directory()).unwrap();
    logs.sort();
    assert!(logs.len() > 3);
    let middle = directory().join(&logs[1]);
    let removed = disk.copy();
    removed.remove(&middle).unwrap();
    let error = open(&removed, 1000).err();
    assert!(matches!(&error, Some(Error::Corrupt(message)) if message.contains("is missing")), "{error:?}");
    let content = disk.content(&middle);
    for length in 0..content.len() {
        let error = open(&disk.with(&middle, content[..length].to_vec()), 1000).err();
        assert!(matches!(&error, Some(Error::Corrupt(_))), "cut to {length}: {error:?}");
    }
}

#[tokio::test]
async fn a_full_disk_is_told_and_later_writes_succeed() {
    for written in [0, 1, 40, 10_000] {
        let disk = FakeDisk::default();
        let store = open(&disk, 1 << 20).unwrap();
        store.create("/r/pods/a", Bytes::from("1"), None).await.unwrap();
        disk.plan(Fault { operation: Operation::Append, nth: 0, code: ENOSPC, written });
        let error = store.create("/r/pods/b", Bytes::from("1"), None).await.err();
        assert!(matches!(&error, Some(Error::Unavailable(message)) if message.contains("No space left")), "{error:?}");
        assert!(store.peek("/r/pods/b").is_none());
        assert_eq!(store.create("/r/pods/b", Bytes::from("2"), None).await.unwrap().revision, 3);
        drop(store);
        let store = open(&disk, 1 << 20).unwrap();
        assert_eq!((store.count(""), store.revision()), (2, 3));
    }
}

#[tokio::test]
async fn a_failed_sync_stops_writes_until_the_store_is_reopened() {
    for (operation, also) in [(Operation::Sync, None), (Operation::Append, Some(Operation::Truncate))] {
        let disk = FakeDisk::default();
        let store = open(&disk, 1 << 20).unwrap();
        store.create("/r/pods/a", Bytes::from("1"), None).await.unwrap();
        for operation in [Some(operation), also].into_iter().flatten() {
            disk.plan(Fault { operation, nth: 0, code: EIO, written: 7 });
        }
        for name in ["b", "c"] {
            let error = store.create(&format!("/r/pods/{name}"), Bytes::from("1"), None).await.err();
            assert!(
                matches!(&error, Some(Error::Unavailable(message)) if message.contains("no more writes")),
                "{error:?}"
            );
        }
        assert_eq!((store.count(""), store.revision()), (1, 2), "reads go on");
        drop(store);
        let store = open(&disk.after_power_loss(&mut StdRng::seed_from_u64(1)), 1 << 20).unwrap();
        assert!(store.peek("/r/pods/a").is_some());
    }
}

#[tokio::test]
async fn writes_that_build_on_a_failed_one_fail_too() {
    let disk = FakeDisk::default();
    let store = Arc::new(open(&disk, 1 << 20).unwrap());
    store.create("/r/pods/a", Bytes::from("1"), None).await.unwrap();
    disk.plan(Fault { operation: Operation::Append, nth: 0, code: ENOSPC, written: 3 });
    let writes = (0..32).map(|number| store.update("/r/pods/a", Bytes::from("2"), 2 + number, None));
    let outcomes = futures::future::join_all(writes).await;
    let revision = store.revision();
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
    assert_eq!(revision, 2 + done);
    assert_eq!(store.peek("/r/pods/a").unwrap().revision, revision);
    drop(outcomes);
    drop(store);
    assert_eq!(open(&disk, 1 << 20).unwrap().revision(), revision);
}

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

#[tokio::test]
async fn a_segment_that_cannot_be_made_leaves_the_log_whole() {
    for operation in [Operation::Create, Operation::Append, Operation::Sync, Operation::SyncDirectory] {
        let disk = FakeDisk::default();
        let store = open(&disk, 100).unwrap();
        store.create("/r/pods/a", Bytes::from(vec![b'x'; 200]), None).await.unwrap();
        disk.plan(Fault { operation, nth: 0, code: ENOSPC, written: 5 });
        assert!(
            matches!(store.create("/r/pods/b", Bytes::new(), None).await, Err(Error::Unavailable(_))),
            "{operation:?}"
        );
        if store.create("/r/pods/c", Bytes::new(), None).await.is_ok() {
            drop(store);
            assert_eq!(open(&disk, 100).unwrap().count(""), 2, "{operation:?}");
        } else {
            drop(store);
            assert_eq!(open(&disk, 100).unwrap().count(""), 1, "{operation:?}");
        }
    }
}

#[tokio::test]
async fn a_checkpoint_that_fails_changes_nothing() {
    for operation in [
        Operation::Create,
        Operation::Append,
        Operation::Sync,
        Operation::Rename,
        Operation::SyncDirectory,
        Operation::Remove,
    ] {
        let disk = FakeDisk::default();
        let store = open(&disk, 1000).unwrap();
        let mut entry = store.create("/r/pods/a", Bytes::from(vec![b'x'; 600]), None).await.unwrap();
        for _ in 0..10 {
            entry = store.update("/r/pods/a", Bytes::from(vec![b'y'; 600]), entry.revision, None).await.unwrap();
        }
        disk.plan(Fault { operation, nth: 0, code: ENOSPC, written: 100 });
        store.compact(8).await.unwrap();
        drop(store);
        let store = open(&disk, 1000).unwrap();
        assert_eq!((store.revision(), store.peek("/r/pods/a").unwrap().revision), (12, 12), "{operation:?}");
        assert!(store.watch("", 8).is_ok());
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_upset_the_parsers(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600)) {
        fuzzing::log(&bytes);
        fuzzing::image(&bytes);
        fuzzing::records(&bytes);
    }

    #[test]
    fn no_records_under_a_right_checksum_upset_the_parsers(
        payloads in proptest::collection::vec(proptest::collection::vec(0..4u8, 0..100), 1..5)
    ) {
        let mut framer = frame::Framer { mark: 7, next: 0 };
        let mut file = Vec::new();
        for payload in payloads {
            let mut buffer = Vec::new();
            frame::Framer::start(&mut buffer);
            buffer.extend_from_slice(&payload);
            framer.finish(&mut buffer);
            file.extend_from_slice(&buffer);
        }
        fuzzing::log(&file);
        fuzzing::image(&file);
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
            let value = event.current.as_ref().map(|entry| entry.value.clone());
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
                page.entries.iter().map(|entry| (entry.key.to_string(), Some(entry.value.clone()))).collect();
            assert!(present == state, "seed {seed}, round {round}: the entries are not what the history says");
            drop(store);
            disk = disk.copy();
        }
    }
}

fn open_with_reserve(disk: &FakeDisk) -> Embedded {
    let options = Options { disk: Arc::new(disk.clone()), reserve_bytes: 1000, ..Options::default() };
    Embedded::open(directory(), options).unwrap()
}

#[tokio::test]
async fn a_full_disk_releases_the_reserve_and_accepts_deletions() {
    let disk = FakeDisk::default();
    let store = open_with_reserve(&disk);
    let first = store.create("/r/pods/a", Bytes::from("1"), None).await.unwrap();
    assert!(disk.list(directory()).unwrap().contains(&"reserve".to_owned()));
    disk.plan(Fault { operation: Operation::Append, nth: 0, code: ENOSPC, written: 10 });
    // There is no space to allocate the reserve again.
    (0..100).for_each(|nth| disk.plan(Fault { operation: Operation::Create, nth, code: ENOSPC, written: 0 }));
    // The write that found the disk full uses the reserve.
    assert_eq!(store.create("/r/pods/b", Bytes::from("1"), None).await.unwrap().revision, 3);
    assert!(!disk.list(directory()).unwrap().contains(&"reserve".to_owned()));
    assert!(matches!(store.create("/r/pods/c", Bytes::from("1"), None).await, Err(Error::SpaceExceeded)));
    let status = store.status();
    assert!(status.failure.unwrap().contains("No space left") && status.alarm.is_some());
    store.delete("/r/pods/a", first.revision).await.unwrap();
    // With nothing left, the store has failed.
    disk.plan(Fault { operation: Operation::Append, nth: 0, code: ENOSPC, written: 0 });
    assert!(matches!(store.delete("/r/pods/b", 3).await, Err(Error::Unavailable(_))));
    assert!(store.failed().await.contains("No space left"));
}

#[tokio::test]
async fn a_disk_with_space_again_accepts_all_writes() {
    let disk = FakeDisk::default();
    let store = open_with_reserve(&disk);
    disk.plan(Fault { operation: Operation::Append, nth: 0, code: ENOSPC, written: 10 });
    store.create("/r/pods/a", Bytes::from("1"), None).await.unwrap();
    assert!(matches!(store.create("/r/pods/b", Bytes::from("1"), None).await, Err(Error::SpaceExceeded)));
    // The reserve is allocated again after a while.
    while store.status().alarm.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    store.create("/r/pods/b", Bytes::from("1"), None).await.unwrap();
    assert!(disk.list(directory()).unwrap().contains(&"reserve".to_owned()));
    assert_eq!(store.status().failure, None);
}
