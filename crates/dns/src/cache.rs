//! Cache of upstream responses, for their TTL.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::message::{HEADER, kind, read_name, read_number, read_record};
use crate::metrics;
use crate::name::Name;

const CAPACITY: usize = 10_000;
/// The maximum size of all cached responses in bytes. Owners of domains choose the size of each.
const MAX_BYTES: usize = 8 << 20;
const MAX_TTL: Duration = Duration::from_secs(3600);
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey {
    pub name: Name,
    pub kind: u16,
    pub class: u16,
    /// Signed and unsigned responses differ.
    pub wants_signatures: bool,
    pub checking_disabled: bool,
}

struct CacheEntry {
    response: Arc<[u8]>,
    since: Instant,
    until: Instant,
}

#[derive(Default)]
pub struct Cache {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<CacheKey, CacheEntry>,
    bytes: usize,
}

impl Entries {
    fn is_full(&self, coming: usize) -> bool {
        self.by_key.len() >= CAPACITY || self.bytes + coming > MAX_BYTES
    }

    fn retain(&mut self, mut is_kept: impl FnMut(&CacheEntry) -> bool) {
        let bytes = &mut self.bytes;
        self.by_key.retain(|_, entry| {
            is_kept(entry) || {
                *bytes -= entry.response.len();
                metrics::evicted(&entry.response)
            }
        });
    }
}

impl Cache {
    /// A response that has not expired, with the remaining TTL in its records. Its id is that of the original response.
    pub fn find(&self, key: &CacheKey, now: Instant) -> Option<Vec<u8>> {
        let (response, age) = {
            let entries = self.entries.lock();
            let entry = entries.by_key.get(key).filter(|entry| entry.until > now)?;
            (Arc::clone(&entry.response), now.saturating_duration_since(entry.since))
        };
        let mut response = response.to_vec();
        age_records(&mut response, u32::try_from(age.as_secs()).unwrap_or(u32::MAX));
        Some(response)
    }

    pub fn keep(&self, key: CacheKey, response: &[u8], now: Instant) {
        let Some(life) = lifetime(response).filter(|life| !life.is_zero()) else { return };
        let mut entries = self.entries.lock();
        if entries.is_full(response.len()) {
            entries.retain(|entry| entry.until > now);
        }
        while entries.is_full(response.len()) {
            // Nothing has expired: evicting any tenth makes room and costs those names one more query.
            let mut index = 9usize;
            entries.retain(|_| {
                index += 1;
                !index.is_multiple_of(10)
            });
        }
        let entry = CacheEntry { response: response.into(), since: now, until: now + life };
        let replaced = entries.by_key.insert(key, entry);
        entries.bytes += response.len();
        entries.bytes -= replaced.as_ref().map_or(0, |entry| entry.response.len());
        metrics::cached(response, replaced.as_ref().map(|entry| &*entry.response));
    }
}

/// The TTL of a response: that of its shortest-lived record; for a negative response, that of its SOA record.
fn lifetime(response: &[u8]) -> Option<Duration> {
    let code = response.get(3)? & 0x0f;
    let is_cut = response.get(2)? & 2 != 0;
    if is_cut || !matches!(code, 0 | 3) {
        return None;
    }
    let mut shortest: Option<u32> = None;
    let is_denial = code == 3 || read_number(response, 6)? == 0;
    let mut denial = None;
    each_record(response, |response, record| {
        let life = u32::from_be_bytes(response[record.time_to_live_at..][..4].try_into().unwrap_or_default());
        shortest = Some(shortest.map_or(life, |shortest: u32| shortest.min(life)));
        if record.kind == kind::SOA && record.data.len() >= 20 {
            let minimum = response[record.data.end - 4..record.data.end].try_into().unwrap_or_default();
            denial = Some(u32::from_be_bytes(minimum).min(life));
        }
    })?;
    if is_denial {
        return denial.map(|seconds| Duration::from_secs(seconds.into()).min(MAX_NEGATIVE_TTL));
    }
    shortest.map(|seconds| Duration::from_secs(seconds.into()).min(MAX_TTL))
}

fn age_records(response: &mut [u8], age: u32) {
    let mut places = Vec::new();
    let _ = each_record(response, |_, record| places.push(record.time_to_live_at));
    for at in places {
        let Some(life) = response.get_mut(at..at + 4) else { continue };
        let left = u32::from_be_bytes([life[0], life[1], life[2], life[3]]).saturating_sub(age);
        life.copy_from_slice(&left.to_be_bytes());
    }
}

/// Visits all records except OPT. `None` if the message is malformed.
fn each_record(response: &[u8], mut visit: impl FnMut(&[u8], &crate::message::RecordPosition)) -> Option<()> {
    let mut at = HEADER;
    for _ in 0..read_number(response, 4)? {
        at = read_name(response, at)?.1 + 4;
    }
    let count: usize = [6, 8, 10].into_iter().map(|at| read_number(response, at).map_or(0, usize::from)).sum();
    for _ in 0..count {
        let record = read_record(response, at)?;
        if record.kind != kind::OPT {
            visit(response, &record);
        }
        at = record.data.end;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::query;
    use crate::message::{Code, Data, Query, Record, Sections, write};

    fn response(code: Code, seconds: &[u32], minimum: Option<u32>) -> Vec<u8> {
        let request = query("a.example", kind::A, None);
        let record = |seconds: &u32| Record { owner: None, time_to_live: *seconds, data: Data::A([1, 2, 3, 4].into()) };
        let name = Name::from_text("example").unwrap();
        let soa = |minimum| Record {
            owner: None,
            time_to_live: 900,
            data: Data::Soa { server: name.clone(), mailbox: name.clone(), serial: 1, minimum },
        };
        let sections = Sections {
            answers: seconds.iter().map(record).collect(),
            authority: minimum.into_iter().map(soa).collect(),
            ..Sections::default()
        };
        let mut out = Vec::new();
        write(&mut out, &request, &Query::read(&request).unwrap(), code, false, &sections, 65_535);
        out
    }

    #[test]
    fn responses_live_for_their_ttl() {
        for (code, seconds, minimum, expected) in [
            (Code::NoError, &[300, 60][..], None, Some(60)),
            (Code::NoError, &[100_000], None, Some(3600)),
            (Code::NoSuchName, &[], Some(10), Some(10)),
            (Code::NoError, &[], Some(900), Some(30)),
            (Code::NoError, &[], None, None),
            (Code::ServerFailure, &[], Some(10), None),
        ] {
            assert_eq!(lifetime(&response(code, seconds, minimum)), expected.map(Duration::from_secs));
        }
    }

    /// A pod that queries names of a domain whose server sends long responses does not fill the node's memory.
    #[test]
    fn long_responses_do_not_fill_memory() {
        let cache = Cache::default();
        let long = response(Code::NoError, &[60; 4000], None);
        assert!(long.len() > 60_000);
        let now = Instant::now();
        let key = |number: usize| {
            let name = Name::from_text(&format!("n{number}.example")).unwrap();
            CacheKey { name, kind: kind::A, class: 1, wants_signatures: false, checking_disabled: false }
        };
        for number in 0..1000 {
            cache.keep(key(number), &long, now);
            cache.keep(key(number), &long, now);
            assert!(cache.find(&key(number), now).is_some(), "the newest is kept");
            let entries = cache.entries.lock();
            let bytes: usize = entries.by_key.values().map(|entry| entry.response.len()).sum();
            assert!(bytes <= MAX_BYTES && bytes == entries.bytes, "{bytes}");
        }
    }

    #[test]
    fn cached_responses_age() {
        let cache = Cache::default();
        let name = Name::from_text("a.example").unwrap();
        let key = CacheKey { name, kind: kind::A, class: 1, wants_signatures: false, checking_disabled: false };
        let start = Instant::now();
        cache.keep(key.clone(), &response(Code::NoError, &[60], None), start);
        let later = cache.find(&key, start + Duration::from_secs(20)).unwrap();
        assert_eq!(later, response(Code::NoError, &[40], None));
        assert!(cache.find(&key, start + Duration::from_secs(60)).is_none());
    }
}
