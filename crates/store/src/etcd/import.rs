//! Writes the contents of a snapshot into the database of a stopped etcd member, with every revision kept.
//!
//! etcd's API can only append at its next revision. Its database, however, is a table of versions by revision: an entry is
//! written there at the revision it has, and the history before the snapshot is marked as compacted, which also makes it
//! the member's current revision. The member must be the only one of its cluster; others copy its database when they join.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use prost::Message;

use super::bolt::{self, Bucket, Buckets};
use super::wire::KeyValue;
use crate::contract::{Entry, Error, Revision};

/// Entries that expire within the same minute share a lease.
const LEASE_SECONDS: u64 = 60;

/// A lease in etcd's database.
#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    /// Seconds.
    #[prost(int64, tag = "2")]
    ttl: i64,
}

/// The revisions that clients may have seen besides those of a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SkippedRevisions {
    /// The newest that is known.
    pub seen: Revision,
    /// How many there may be after that, or after the snapshot.
    pub after: Revision,
}

/// Replaces the contents of the database by those of a snapshot, and returns its new revision: that of the snapshot, unless
/// the store has gone on after it. `now` is in milliseconds since 1970.
pub fn import(image: impl Read, database: &Path, skipped: SkippedRevisions, now: u64) -> Result<Revision, Error> {
    let (revision, entries) = crate::embedded::read_snapshot(BufReader::new(image))?;
    let revision = revision.max(skipped.seen).saturating_add(skipped.after).max(1);
    let failed = |step: &str, error: &dyn std::fmt::Display| failed(database, step, error);
    let mut buckets = read(database)?;
    let (keys, leases) = contents(&entries, now);
    buckets.insert(b"key".to_vec(), keys);
    buckets.insert(b"lease".to_vec(), leases);
    let meta = buckets.get_mut(b"meta".as_slice()).ok_or_else(|| failed("reading", &"it has no meta bucket"))?;
    for name in ["finishedCompactRev", "scheduledCompactRev"] {
        meta.insert(name.as_bytes().to_vec(), position(revision, 0));
    }
    let beside = database.with_extension("new");
    // It contains secrets.
    let written = File::options().write(true).create(true).truncate(true).mode(0o600).open(&beside).and_then(|file| {
        let mut file = BufWriter::new(file);
        bolt::write(&buckets, &mut file)?;
        file.get_ref().sync_all()
    });
    let renamed = written.and_then(|()| std::fs::rename(&beside, database)).and_then(|()| {
        // The member is noted as soon as this returns: its contents must not be lost with the power.
        database.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    });
    renamed.map_err(|error| {
        // It wastes space, of which there may be none left.
        let _ = std::fs::remove_file(&beside);
        failed("writing", &error)
    })?;
    Ok(revision)
}

/// The newest revision in the database of a stopped member.
pub fn revision_of(database: &Path) -> Result<Revision, Error> {
    let buckets = read(database)?;
    let bucket = |name: &str| buckets.get(name.as_bytes());
    let newest = bucket("key").and_then(|keys| keys.last_key_value()).map(|(position, _)| position);
    let compacted = bucket("meta").and_then(|meta| meta.get(b"finishedCompactRev".as_slice()));
    let revisions = newest.into_iter().chain(compacted).filter_map(|position| position.first_chunk::<8>());
    Ok(revisions.map(|bytes| Revision::from_be_bytes(*bytes)).max().unwrap_or_default())
}

fn read(database: &Path) -> Result<Buckets, Error> {
    let file = std::fs::read(database).map_err(|error| failed(database, "reading", &error))?;
    bolt::read(&file).map_err(|error| failed(database, "reading", &error))
}

fn failed(database: &Path, step: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Open(format!("{step} the etcd database {}: {error}", database.display()))
}

/// The buckets of keys and of leases.
fn contents(entries: &[Arc<Entry>], now: u64) -> (Bucket, Bucket) {
    let (mut keys, mut leases) = (Bucket::new(), Bucket::new());
    for entry in entries {
        let lease = if entry.expires == 0 { 0 } else { lease(entry.expires, now, &mut leases) };
        let pair = KeyValue {
            key: entry.key.as_bytes().to_vec(),
            create_revision: entry.created as i64,
            mod_revision: entry.revision as i64,
            version: if entry.created == entry.revision { 1 } else { 2 },
            value: entry.value().to_vec(),
            lease,
        };
        // A transaction of several keys gives all of them one revision.
        let free = (0..).map(|sub| position(entry.revision, sub)).find(|position| !keys.contains_key(position));
        keys.extend(free.map(|position| (position, pair.encode_to_vec())));
    }
    (keys, leases)
}

/// The lease for an entry's expiry; its number is the minute in which it expires.
fn lease(expires: u64, now: u64, leases: &mut Bucket) -> i64 {
    let left = expires.saturating_sub(now) / 1000;
    let minutes = left / LEASE_SECONDS + 1;
    let id = minutes as i64;
    let lease = StoredLease { id, ttl: (minutes * LEASE_SECONDS) as i64 };
    leases.insert(id.to_be_bytes().to_vec(), lease.encode_to_vec());
    id
}

/// A revision as a key of etcd's database.
fn position(revision: Revision, sub: u64) -> Vec<u8> {
    let mut key = revision.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend(sub.to_be_bytes());
    key
}
