//! The file format of etcd's database (bbolt): a file of pages, in which each bucket is a B+ tree of sorted keys.
//!
//! Only whole files are read and written: a database is read into memory (`read`), changed there and written again
//! (`write`). A page is at least as large as the operating system's; all numbers have the byte order of the host, which
//! is little-endian wherever etcd is supported.

mod read;
mod write;

use std::collections::BTreeMap;

pub(super) use read::read;
pub(super) use write::write;

/// The contents of a bucket, sorted by key.
pub(super) type Bucket = BTreeMap<Vec<u8>, Vec<u8>>;
/// Buckets by name.
pub(super) type Buckets = BTreeMap<Vec<u8>, Bucket>;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 16;
/// The size of an element in a leaf or branch page, without its key and value.
const ELEMENT_BYTES: usize = 16;
/// The length of a meta page's fields before their checksum.
const META_BYTES: usize = 56;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// Marks an element of a leaf whose value is a bucket.
const IS_BUCKET: u32 = 0x01;

/// Why a database cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("not a valid etcd database: {0}")]
pub(super) struct Invalid(&'static str);

/// Reads bytes as a database; the checksum of its first meta page is set right, which no fuzzer would.
#[doc(hidden)]
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut file = bytes.to_vec();
    let end = HEADER_BYTES + META_BYTES;
    if file.len() >= end + 8 {
        let right = checksum(&file[HEADER_BYTES..end]).to_le_bytes();
        file[end..end + 8].copy_from_slice(&right);
    }
    drop(read(&file));
}

/// A small database, for fuzzing.
#[doc(hidden)]
pub(crate) fn seed() -> Vec<u8> {
    let bucket = Bucket::from([(b"a".to_vec(), b"one".to_vec()), (b"b".to_vec(), vec![7; 100])]);
    let mut file = std::io::Cursor::new(Vec::new());
    // Writing to memory does not fail.
    let _ = write(&Buckets::from([(b"key".to_vec(), bucket), (b"lease".to_vec(), Bucket::new())]), &mut file);
    file.into_inner()
}

/// FNV-1a, the checksum of meta pages.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(buckets: &Buckets) -> Buckets {
        let mut file = std::io::Cursor::new(Vec::new());
        write(buckets, &mut file).unwrap();
        read(file.get_ref()).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let large: Bucket =
            (0..20_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; (n % 300) as usize])).collect();
        let huge: Bucket =
            [(b"a".to_vec(), vec![1; 100_000]), (b"b".to_vec(), vec![]), (b"c".to_vec(), vec![2; 5000])].into();
        let buckets: Buckets =
            [(b"empty".to_vec(), Bucket::new()), (b"huge".to_vec(), huge), (b"key".to_vec(), large)].into();
        assert_eq!(round_trip(&buckets), buckets);
        assert_eq!(round_trip(&Buckets::new()), Buckets::new());
    }

    /// A branch page whose 200 children are the page itself: walking it would take 200 to the power of its depth.
    #[test]
    fn pages_that_lead_to_themselves_are_refused_at_once() {
        let mut file = vec![0_u8; 3 * 4096];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        let mut meta = [0_u8; META_BYTES];
        meta[..4].copy_from_slice(&MAGIC.to_le_bytes());
        meta[4..8].copy_from_slice(&VERSION.to_le_bytes());
        meta[8..12].copy_from_slice(&4096_u32.to_le_bytes());
        meta[16..24].copy_from_slice(&2_u64.to_le_bytes());
        put(HEADER_BYTES, &meta);
        put(HEADER_BYTES + META_BYTES, &checksum(&meta).to_le_bytes());
        let branch = 2 * 4096;
        put(branch + 8, &BRANCH.to_le_bytes());
        put(branch + 10, &200_u16.to_le_bytes());
        for child in 0..200 {
            put(branch + HEADER_BYTES + child * ELEMENT_BYTES + 8, &2_u64.to_le_bytes());
        }
        let (done, finished) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(read(&file).is_err()));
        assert_eq!(finished.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
    }

    #[test]
    fn damaged_files_are_refused_without_a_panic() {
        let buckets: Buckets = [(b"key".to_vec(), Bucket::from([(b"a".to_vec(), vec![7; 9000])]))].into();
        let mut file = std::io::Cursor::new(Vec::new());
        write(&buckets, &mut file).unwrap();
        let bytes = file.into_inner();
        for length in (0..bytes.len()).step_by(512) {
            assert!(read(&bytes[..length]).is_err(), "cut at {length}");
        }
        for offset in 0..bytes.len().min(20_000) {
            let mut flipped = bytes.clone();
            flipped[offset] ^= 0x81;
            // Values carry no checksum: what matters is that nothing outside the file is read.
            let _ = read(&flipped);
        }
    }
}
