//! What upstream resolvers said, for as long as they said it holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::message::{HEADER, kind, read_name, read_number, read_record};
use crate::name::Name;

const CAPACITY: usize = 10_000;
const LONGEST: Duration = Duration::from_secs(3600);
const LONGEST_DENIAL: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    pub name: Name,
    pub kind: u16,
    pub class: u16,
    /// Signed and unsigned answers differ.
    pub wants_signatures: bool,
    pub checking_disabled: bool,
}

struct Remembered {
    answer: Arc<[u8]>,
    since: Instant,
    until: Instant,
}

#[derive(Default)]
pub struct Cache {
    entries: Mutex<HashMap<Asked, Remembered>>,
}

impl Cache {
    /// An answer that still holds, with what is left of its records' lives. Its id is the old one.
    pub fn find(&self, asked: &Asked, now: Instant) -> Option<Vec<u8>> {
        let (answer, age) = {
            let entries = self.entries.lock();
            let entry = entries.get(asked).filter(|entry| entry.until > now)?;
            (Arc::clone(&entry.answer), now.saturating_duration_since(entry.since))
        };
        let mut answer = answer.to_vec();
        age_records(&mut answer, u32::try_from(age.as_secs()).unwrap_or(u32::MAX));
        Some(answer)
    }

    pub fn keep(&self, asked: Asked, answer: &[u8], now: Instant) {
        let Some(life) = lifetime(answer).filter(|life| !life.is_zero()) else { return };
        let mut entries = self.entries.lock();
        if entries.len() >= CAPACITY {
            entries.retain(|_, entry| entry.until > now);
        }
        if entries.len() >= CAPACITY {
            // All still hold: any tenth makes room, which costs those names one question more.
            let mut index = 0usize;
            entries.retain(|_, _| {
                index += 1;
                !index.is_multiple_of(10)
            });
        }
        entries.insert(asked, Remembered { answer: answer.into(), since: now, until: now + life });
    }
}

/// How long an answer holds: as long as its shortest record; a denial as long as its SOA says.
fn lifetime(answer: &[u8]) -> Option<Duration> {
    let code = answer.get(3)? & 0x0f;
    let is_cut = answer.get(2)? & 2 != 0;
    if is_cut || !matches!(code, 0 | 3) {
        return None;
    }
    let mut shortest: Option<u32> = None;
    let is_denial = code == 3 || read_number(answer, 6)? == 0;
    let mut denial = None;
    each_record(answer, |answer, record| {
        let life = u32::from_be_bytes(answer[record.time_to_live_at..][..4].try_into().unwrap_or_default());
        shortest = Some(shortest.map_or(life, |shortest: u32| shortest.min(life)));
        if record.kind == kind::SOA && record.data.len() >= 20 {
            let minimum = answer[record.data.end - 4..record.data.end].try_into().unwrap_or_default();
            denial = Some(u32::from_be_bytes(minimum).min(life));
        }
    })?;
    if is_denial {
        return denial.map(|seconds| Duration::from_secs(seconds.into()).min(LONGEST_DENIAL));
    }
    shortest.map(|seconds| Duration::from_secs(seconds.into()).min(LONGEST))
}

fn age_records(answer: &mut [u8], age: u32) {
    let mut places = Vec::new();
    let _ = each_record(answer, |_, record| places.push(record.time_to_live_at));
    for at in places {
        let Some(life) = answer.get_mut(at..at + 4) else { continue };
        let left = u32::from_be_bytes([life[0], life[1], life[2], life[3]]).saturating_sub(age);
        life.copy_from_slice(&left.to_be_bytes());
    }
}

/// Visits all records but the OPT one. `None` when the message is broken.
fn each_record(answer: &[u8], mut visit: impl FnMut(&[u8], &crate::message::Place)) -> Option<()> {
    let mut at = HEADER;
    for _ in 0..read_number(answer, 4)? {
        at = read_name(answer, at)?.1 + 4;
    }
    let count: usize = [6, 8, 10].into_iter().map(|at| read_number(answer, at).map_or(0, usize::from)).sum();
    for _ in 0..count {
        let record = read_record(answer, at)?;
        if record.kind != kind::OPT {
            visit(answer, &record);
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

    fn answer(code: Code, seconds: &[u32], minimum: Option<u32>) -> Vec<u8> {
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
    fn answers_hold_as_long_as_they_say() {
        for (code, seconds, minimum, expected) in [
            (Code::NoError, &[300, 60][..], None, Some(60)),
            (Code::NoError, &[100_000], None, Some(3600)),
            (Code::NoSuchName, &[], Some(10), Some(10)),
            (Code::NoError, &[], Some(900), Some(30)),
            (Code::NoError, &[], None, None),
            (Code::ServerFailure, &[], Some(10), None),
        ] {
            assert_eq!(lifetime(&answer(code, seconds, minimum)), expected.map(Duration::from_secs));
        }
    }

    #[test]
    fn remembered_answers_grow_old() {
        let cache = Cache::default();
        let name = Name::from_text("a.example").unwrap();
        let asked = Asked { name, kind: kind::A, class: 1, wants_signatures: false, checking_disabled: false };
        let start = Instant::now();
        cache.keep(asked.clone(), &answer(Code::NoError, &[60], None), start);
        let later = cache.find(&asked, start + Duration::from_secs(20)).unwrap();
        assert_eq!(later, answer(Code::NoError, &[40], None));
        assert!(cache.find(&asked, start + Duration::from_secs(60)).is_none());
    }
}
