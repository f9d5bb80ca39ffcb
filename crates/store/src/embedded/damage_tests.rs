//! Damaged files: an error that names the file and the offset, or nothing lost.

use bytes::Bytes;

use super::disk::Disk;
use super::fake_disk::{FakeDisk, directory, open};
use super::frame::HEADER;
use super::log::log_name;
use super::*;
use crate::contract::Store;

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
async fn a_flipped_bit_anywhere_is_reported_with_file_and_offset() {
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
async fn a_missing_or_damaged_file_before_the_last_is_reported() {
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
