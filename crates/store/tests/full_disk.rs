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
        eprintln!("SKIPPED: only root can mount the small file system that this test fills");
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
