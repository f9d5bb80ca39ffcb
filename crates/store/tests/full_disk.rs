//! A file system that is really full.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use knarr_store::{Embedded, Error, Options, Store};

/// A small file system in memory, gone when this is dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` when this user may not mount.
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(directory.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.path().display());
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_keeps_what_it_has_and_recovers() {
    let Some(disk) = SmallDisk::mount() else {
        knarr_test_host::skip("only root can mount the small file system that this test fills");
        return;
    };
    let directory = disk.path().join("store");
    let store = Embedded::open(&directory, Options::default()).expect("the store opens");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 300 << 10]).expect("room for the ballast");
    let mut written = 0;
    let refusal = loop {
        match store.create(&format!("/registry/pods/{written}"), Bytes::from(vec![b'x'; 3000]), None).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&refusal, Error::Unavailable(message) if message.contains("No space left")), "{refusal}");
    assert!(written > 100, "only {written} writes fit");
    assert_eq!(store.count("/registry/pods/"), written);
    std::fs::remove_file(&ballast).expect("the ballast goes");
    store.create("/registry/pods/last", Bytes::from(vec![b'x'; 3000]), None).await.expect("there is room again");
    drop(store);
    let store = Embedded::open(&directory, Options::default()).expect("the store opens again");
    assert_eq!(store.count("/registry/pods/"), written + 1);
    assert_eq!(store.revision(), written as u64 + 2);
}

#[tokio::test]
async fn a_full_disk_has_space_for_deletions() {
    let Some(disk) = SmallDisk::mount() else {
        knarr_test_host::skip("only root can mount the small file system that this test fills");
        return;
    };
    let directory = disk.path().join("store");
    let options = || Options { reserve_bytes: 200 << 10, ..Options::default() };
    let store = Embedded::open(&directory, options()).expect("the store opens");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 300 << 10]).expect("room for the ballast");
    let key = |number: usize| format!("/registry/pods/{number}");
    let mut written = 0;
    let refusal = loop {
        match store.create(&key(written), Bytes::from(vec![b'x'; 3000]), None).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&refusal, Error::SpaceExceeded), "{refusal}");
    assert!(store.status().failure.is_some_and(|failure| failure.contains("No space left")));
    for number in 0..written {
        let entry = store.peek(&key(number)).expect("an entry");
        store.delete(&key(number), entry.revision).await.expect("a deletion fits");
    }
    assert_eq!(store.count("/registry/pods/"), 0);
    drop(store);
    let store = loop {
        match Embedded::open(&directory, options()) {
            Ok(store) => break store,
            // A process that another test is starting holds the lock until it runs its program.
            Err(error) if error.to_string().contains("in use") => tokio::task::yield_now().await,
            Err(error) => panic!("the store does not open on the full disk: {error}"),
        }
    };
    assert!(matches!(store.create("/registry/pods/a", Bytes::new(), None).await, Err(Error::SpaceExceeded)));
    std::fs::remove_file(&ballast).expect("the ballast goes");
    while store.status().failure.is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    store.create("/registry/pods/last", Bytes::from(vec![b'x'; 3000]), None).await.expect("there is room again");
}
