//! Full and failing disks: an error, nothing lost, and writes again when there is space.

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::disk::Disk;
use super::fake_disk::{EIO, ENOSPC, FakeDisk, Fault, Operation, directory, open};
use super::*;
use crate::contract::Store;

#[tokio::test]
async fn a_full_disk_is_reported_and_later_writes_succeed() {
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

#[tokio::test]
async fn a_checkpoint_leaves_the_reserve_of_a_full_disk_to_deletions() {
    for (bytes, is_saved) in [(600, false), (50, true)] {
        let disk = FakeDisk::default();
        let own = Arc::new(disk.clone());
        let options = Options { disk: own, reserve_bytes: 1000, segment_bytes: 1000, ..Options::default() };
        let store = Embedded::open(directory(), options).unwrap();
        let mut entry = store.create("/r/pods/a", Bytes::from(vec![b'x'; bytes]), None).await.unwrap();
        for _ in 0..40 {
            entry = store.update("/r/pods/a", Bytes::from(vec![b'y'; bytes]), entry.revision, None).await.unwrap();
        }
        store.shared.index.compact(entry.revision).unwrap();
        assert!(store.shared.checkpoint_is_due());
        let full = FullDisk { message: String::new(), reserve: 1000, written: 0 };
        store.shared.pending.lock().space.full_disk = Some(full);
        store.shared.checkpoint();
        let names = disk.list(directory()).unwrap();
        assert_eq!(names.iter().any(|name| name.starts_with("image-")), is_saved, "{names:?}");
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
