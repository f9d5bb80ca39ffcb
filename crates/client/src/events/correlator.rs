//! Limits repeated events: identical ones are counted, similar ones are combined, and each object has a rate limit.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use tokio::time::Instant;

use super::lru_map::LruMap;
use super::{Now, name_for};
use crate::time::truncated;

const CACHE_SIZE: usize = 4096;
/// This many different messages of one reason within the interval are combined.
const MAX_SIMILAR: usize = 10;
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// The rate limit of an object's events of one type: a burst, then one per refill period.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;

/// What to do with an event.
#[derive(Debug)]
pub(super) enum Outcome {
    Create(Box<Event>),
    /// The event exists on the server under this name: update its count, time and message.
    Repeat(Box<Event>),
    /// The object exceeded its rate limit.
    Skip,
}

pub(super) struct Correlator {
    similar: LruMap<String, Similar>,
    counts: LruMap<String, Counted>,
    allowance: LruMap<String, Allowance>,
    /// Of messages only hashes are kept: a user whose objects cause thousands of long ones must not fill the memory.
    hashes: RandomState,
}

#[derive(Default)]
struct Similar {
    /// The hashes of different messages.
    messages: HashSet<u64>,
    last: Option<Instant>,
}

#[derive(Default)]
struct Counted {
    count: i32,
    name: Option<String>,
    first: Option<Time>,
}

struct Allowance {
    tokens: f64,
    at: Instant,
}

impl Correlator {
    /// A correlator without history.
    pub fn new() -> Self {
        Self {
            similar: LruMap::new(CACHE_SIZE),
            counts: LruMap::new(CACHE_SIZE),
            allowance: LruMap::new(CACHE_SIZE),
            hashes: RandomState::new(),
        }
    }

    /// Decides what to do with an event.
    pub fn observe(&mut self, event: Event, now: Now) -> Outcome {
        let source = subject(&event);
        let (event, key) = self.combine(event, &source, now);
        let (event, repeated) = self.count(event, key);
        match (self.is_allowed(source, now.monotonic), repeated) {
            (false, _) => Outcome::Skip,
            (true, true) => Outcome::Repeat(Box::new(event)),
            (true, false) => Outcome::Create(Box::new(event)),
        }
    }

    /// The event itself, or the combined one, with the key it is counted under.
    fn combine(&mut self, event: Event, source: &str, now: Now) -> (Event, String) {
        let group = format!("{source}\0{}", event.reason.as_deref().unwrap_or(""));
        let hash = self.hashes.hash_one(event.message.as_deref().unwrap_or_default());
        let similar = self.similar.get_or_insert_with(group.clone(), Similar::default);
        if similar.last.is_none_or(|last| now.monotonic.duration_since(last) > SIMILAR_INTERVAL) {
            similar.messages.clear();
        }
        similar.last = Some(now.monotonic);
        similar.messages.insert(hash);
        if similar.messages.len() < MAX_SIMILAR {
            // Two containers of a pod may have the same message.
            let field_path = event.involved_object.field_path.clone().unwrap_or_default();
            return (event, format!("{group}\0{hash:x}\0{field_path}"));
        }
        // The set stays below its limit by one for the next message.
        if let Some(any) = similar.messages.iter().next().copied() {
            similar.messages.remove(&any);
        }
        let message = event.message.unwrap_or_default();
        let combined = Event {
            metadata: ObjectMeta {
                name: Some(name_for(&event.involved_object, now.wall.as_nanosecond())),
                namespace: event.metadata.namespace,
                ..ObjectMeta::default()
            },
            count: Some(1),
            first_timestamp: Some(truncated(now.wall)),
            last_timestamp: Some(truncated(now.wall)),
            message: Some(format!("(combined from similar events): {message}")),
            involved_object: event.involved_object,
            type_: event.type_,
            reason: event.reason,
            source: event.source,
            ..Event::default()
        };
        (combined, group)
    }

    fn count(&mut self, mut event: Event, key: String) -> (Event, bool) {
        let known = self.counts.get_or_insert_with(key, Counted::default);
        let repeated = known.count > 0;
        if repeated {
            event.metadata.name = known.name.clone();
            event.first_timestamp = known.first.clone();
            event.count = Some(known.count + 1);
        }
        *known = Counted {
            count: event.count.unwrap_or(1),
            name: event.metadata.name.clone(),
            first: event.first_timestamp.clone(),
        };
        (event, repeated)
    }

    fn is_allowed(&mut self, source: String, now: Instant) -> bool {
        let allowance = self.allowance.get_or_insert_with(source, || Allowance { tokens: BURST, at: now });
        let gained = now.duration_since(allowance.at).as_secs_f64() / REFILL_SECONDS;
        allowance.tokens = (allowance.tokens + gained).min(BURST);
        allowance.at = now;
        let allowed = allowance.tokens >= 1.0;
        if allowed {
            allowance.tokens -= 1.0;
        }
        allowed
    }
}

/// The source, object and type of an event.
fn subject(event: &Event) -> String {
    let object = &event.involved_object;
    let source = event.source.as_ref();
    [
        source.and_then(|source| source.component.as_deref()),
        source.and_then(|source| source.host.as_deref()),
        object.kind.as_deref(),
        object.namespace.as_deref(),
        object.name.as_deref(),
        object.uid.as_deref(),
        object.api_version.as_deref(),
        event.type_.as_deref(),
    ]
    .map(Option::unwrap_or_default)
    .join("\0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Now {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Now { wall: Timestamp::from_second(second).unwrap(), monotonic: *START + Duration::from_secs(second as u64) }
    }

    fn event(message: &str, second: i64) -> Event {
        let involved_object = ObjectReference { name: Some("web".into()), ..Default::default() };
        Event {
            metadata: ObjectMeta { name: Some(format!("web.{second:x}")), ..Default::default() },
            message: Some(message.into()),
            reason: Some("Failed".into()),
            count: Some(1),
            first_timestamp: Some(Time(at(second).wall)),
            involved_object,
            ..Default::default()
        }
    }

    #[test]
    fn the_same_event_is_counted_under_its_first_name() {
        let mut correlator = Correlator::new();
        assert!(matches!(correlator.observe(event("no", 1), at(1)), Outcome::Create(_)));
        let Outcome::Repeat(repeated) = correlator.observe(event("no", 2), at(2)) else { panic!("not repeated") };
        assert_eq!(repeated.count, Some(2));
        assert_eq!(repeated.metadata.name.as_deref(), Some("web.1"));
        assert_eq!(repeated.first_timestamp, Some(Time(at(1).wall)));
        assert!(matches!(correlator.observe(event("other", 3), at(3)), Outcome::Create(_)));
        let mut of_container = event("no", 4);
        of_container.involved_object.field_path = Some("spec.containers{b}".into());
        assert!(matches!(correlator.observe(of_container, at(4)), Outcome::Create(_)), "of another container");
    }

    /// What is kept of an event does not grow with its message.
    #[test]
    fn long_messages_of_events_do_not_fill_memory() {
        let mut correlator = Correlator::new();
        for n in 0..9 {
            correlator.observe(event(&format!("{n}{}", "x".repeat(1 << 20)), n), at(n));
        }
        let kept = |map: &LruMap<String, Counted>| map.keys().map(String::len).max();
        assert!(kept(&correlator.counts).is_some_and(|longest| longest < 1000));
    }

    #[test]
    fn many_similar_events_are_combined() {
        let mut correlator = Correlator::new();
        for n in 0..9 {
            assert!(matches!(correlator.observe(event(&format!("no {n}"), n), at(n)), Outcome::Create(_)));
        }
        let Outcome::Create(combined) = correlator.observe(event("no 9", 9), at(9)) else { panic!("not new") };
        assert_eq!(combined.message.as_deref(), Some("(combined from similar events): no 9"));
        let Outcome::Repeat(again) = correlator.observe(event("no 10", 10), at(10)) else { panic!("not repeated") };
        assert_eq!(again.message.as_deref(), Some("(combined from similar events): no 10"));
        assert_eq!(again.count, Some(2));
        assert!(matches!(correlator.observe(event("no 11", 700), at(700)), Outcome::Create(_)), "a new interval");
    }

    #[test]
    fn an_object_over_its_rate_limit_is_skipped_and_recovers() {
        let mut correlator = Correlator::new();
        let written = (0..40).filter(|_| !matches!(correlator.observe(event("no", 1), at(1)), Outcome::Skip)).count();
        assert_eq!(written, 25);
        assert!(!matches!(correlator.observe(event("no", 302), at(302)), Outcome::Skip), "one more after 300 s");
        assert!(matches!(correlator.observe(event("no", 303), at(303)), Outcome::Skip));
    }

    #[test]
    fn a_step_of_the_wall_clock_lifts_no_limit() {
        let mut correlator = Correlator::new();
        let stepped = |second: i64| Now { wall: at(second + 7200).wall, ..at(second) };
        let written = (0..40).filter(|_| !matches!(correlator.observe(event("no", 1), at(1)), Outcome::Skip)).count();
        assert_eq!(written, 25);
        assert!(matches!(correlator.observe(event("no", 2), stepped(2)), Outcome::Skip));
    }
}
