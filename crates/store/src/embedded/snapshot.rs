//! Snapshots of a whole store: export to an image, and restore from one.

use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use super::checkpoint::save_image;
use super::disk::{Disk, RealDisk, describe};
use super::image::{read_image, write_image};
use super::log::LOCK_NAME;
use super::replay::replay;
use crate::contract::{Entry, Error, Page, Range, Revision};

/// How often a store in use is read before an inconsistency counts as damage.
const MAX_ATTEMPTS: usize = 5;

/// Writes all of a page as an image.
pub(crate) fn save(page: &Page, image: &mut (dyn Write + Send)) -> Result<Revision, Error> {
    write_image(&page.entries, page.revision, |piece| image.write_all(piece))
        .and_then(|()| image.flush())
        .map_err(|error| Error::Unavailable(format!("writing the snapshot: {error}")))?;
    Ok(page.revision)
}

/// Writes an image of the embedded store in `directory`, which another process may be using, and returns its revision:
/// one that was the newest at some moment of the call.
pub fn export(directory: &Path, image: &mut (dyn Write + Send)) -> Result<Revision, Error> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let names = disk.list(directory).map_err(|error| Error::Open(describe("listing", directory, &error)))?;
        if !names.iter().any(|name| name == LOCK_NAME) {
            return Err(Error::Open(format!("there is no store in {}", directory.display())));
        }
        match replay(&disk, directory, &names) {
            Ok(replayed) => return save(&replayed.index.range(&Range::default())?, image),
            // Files appear, disappear and grow while they are read: apparent damage may be gone on the next read.
            Err(error) if attempts == MAX_ATTEMPTS => return Err(error),
            Err(_) => {}
        }
    }
}

/// The revision and the entries of an image.
pub(crate) fn read_snapshot(image: impl Read) -> Result<(Revision, Vec<Arc<Entry>>), Error> {
    read_image(image).map_err(|error| Error::Corrupt(format!("the snapshot: {error}")))
}

/// Creates a new embedded store from a snapshot in `directory`, which must be empty or missing, and returns its revision.
///
/// The new store's revisions continue those of the snapshot, after skipping `skip`. Clients of the old store may have seen
/// revisions after the snapshot: skipping past those keeps a revision from having two meanings.
pub fn restore(image: impl Read, directory: &Path, skip: Revision) -> Result<Revision, Error> {
    let (revision, entries) = read_snapshot(BufReader::new(image))?;
    let revision = revision.saturating_add(skip);
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let failed = |step: &str, error: &std::io::Error| Error::Open(describe(step, directory, error));
    disk.make_directory(directory).map_err(|error| failed("creating", &error))?;
    if !disk.list(directory).map_err(|error| failed("listing", &error))?.is_empty() {
        return Err(Error::Open(format!(
            "{} is not empty: a snapshot is restored to a new directory",
            directory.display()
        )));
    }
    save_image(&disk, directory, &entries, revision, |_| true).map_err(Error::Unavailable)?;
    Ok(revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Embedded, Options, Range, Store};
    use bytes::Bytes;
    use std::time::Duration;

    async fn snapshot_of_three(directory: &Path) -> Vec<u8> {
        let store = Embedded::open(directory, Options::default()).unwrap();
        for number in 0..3 {
            let ttl = (number == 2).then_some(Duration::from_secs(3600));
            store.create(&format!("/r/pods/{number}"), Bytes::from(vec![b'x'; 100]), ttl).await.unwrap();
        }
        store.delete("/r/pods/0", 2).await.unwrap();
        let mut image = Vec::new();
        assert_eq!(store.snapshot(&mut image).await.unwrap(), 5);
        image
    }

    #[tokio::test]
    async fn a_snapshot_becomes_a_store_whose_revision_goes_on() {
        let parent = tempfile::tempdir().unwrap();
        let image = snapshot_of_three(&parent.path().join("old")).await;
        for skip in [0, 1000] {
            let directory = parent.path().join(format!("new-{skip}"));
            assert_eq!(restore(image.as_slice(), &directory, skip).unwrap(), 5 + skip);
            let store = Embedded::open(&directory, Options::default()).unwrap();
            let page = store.peek_range(&Range::default()).unwrap();
            assert_eq!(page.entries.iter().map(|entry| entry.revision).collect::<Vec<_>>(), [3, 4]);
            assert!(page.entries[1].expires > 0);
            assert_eq!(store.create("/r/pods/9", Bytes::new(), None).await.unwrap().revision, 6 + skip);
            assert!(matches!(store.watch("", 4), Err(Error::Compacted { .. })));
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_in_use_can_be_exported() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("used");
        assert!(matches!(export(parent.path(), &mut Vec::new()), Err(Error::Open(_))));
        let options = || Options { segment_bytes: 20_000, ..Options::default() };
        let store = Arc::new(Embedded::open(&directory, options()).unwrap());
        let writer = tokio::spawn({
            let store = store.clone();
            async move {
                for number in 0..600 {
                    store.create(&format!("/r/pods/{number}"), Bytes::from(vec![b'x'; 500]), None).await.unwrap();
                    if number % 50 == 0 {
                        store.compact(store.revision() - 1).await.unwrap();
                    }
                }
            }
        });
        let mut exports = 0;
        while !writer.is_finished() || exports < 5 {
            exports += 1;
            let (mut image, before) = (Vec::new(), store.revision());
            let revision = export(&directory, &mut image).unwrap();
            assert!(revision >= before);
            let restored = parent.path().join(format!("restored-{exports}"));
            assert_eq!(restore(image.as_slice(), &restored, 0).unwrap(), revision);
            let restored = Embedded::open(&restored, Options::default()).unwrap();
            assert_eq!(restored.count("") as u64 + 1, revision, "each write created one entry");
            tokio::task::yield_now().await;
        }
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn a_damaged_snapshot_or_a_used_directory_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let used = parent.path().join("old");
        let image = snapshot_of_three(&used).await;
        assert!(matches!(restore(image.as_slice(), &used, 0), Err(Error::Open(_))));
        let directory = parent.path().join("new");
        for offset in 0..image.len() {
            let mut flipped = image.clone();
            flipped[offset] ^= 1 << (offset % 8);
            assert!(
                matches!(restore(flipped.as_slice(), &directory, 0), Err(Error::Corrupt(_))),
                "flipped at {offset}"
            );
            assert!(matches!(restore(&image[..offset], &directory, 0), Err(Error::Corrupt(_))), "cut at {offset}");
        }
        assert!(!directory.exists());
    }
}
