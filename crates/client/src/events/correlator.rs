//! Keeps repeated events from flooding: the same event is counted, similar ones are combined, a talkative object is muted.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

use super::name_for;
use super::recent::Recent;
use crate::time::truncated;

const REMEMBERED: usize = 4096;
/// So many different messages of one reason within the interval, and they are combined.
const SIMILAR: usize = 10;
const SIMILAR_INTERVAL_SECONDS: i64 = 600;
/// An object's events of one type: so many at once, then one every so many seconds.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;

/// What is to be done about an event.
#[derive(Debug)]
pub(super) enum Outcome {
    Create(Box<Event>),
    /// The event is on the server under this name: write its new count, time and message.
    Repeat(Box<Event>),
    /// The object said too much of late.
    Skip,
}

pub(super) struct Correlator {
    similar: Recent<String, Similar>,
    seen: Recent<String, Seen>,
    allowance: Recent<String, Allowance>,
}

#[derive(Default)]
struct Similar {
    messages: HashSet<String>,
    last: Option<Timestamp>,
}

#[derive(Default)]
struct Seen {
    count: i32,
    name: Option<String>,
    first: Option<Time>,
}

struct Allowance {
    tokens: f64,
    at: Timestamp,
}

impl Correlator {
    pub fn new() -> Self {
        Self { similar: Recent::new(REMEMBERED), seen: Recent::new(REMEMBERED), allowance: Recent::new(REMEMBERED) }
    }

    pub fn observe(&mut self, event: Event, now: Timestamp) -> Outcome {
        let talker = subject(&event);
        let (event, key) = self.combine(event, &talker, now);
        let (event, repeated) = self.count(event, key);
        match (self.is_allowed(talker, now), repeated) {
            (false, _) => Outcome::Skip,
            (true, true) => Outcome::Repeat(Box::new(event)),
            (true, false) => Outcome::Create(Box::new(event)),
        }
    }

    /// The event itself, or the one that stands for many like it, with the key it is counted under.
    fn combine(&mut self, event: Event, talker: &str, now: Timestamp) -> (Event, String) {
        let group = format!("{talker}\0{}", event.reason.as_deref().unwrap_or(""));
        let message = event.message.clone().unwrap_or_default();
        let similar = self.similar.get_or_insert_with(group.clone(), Similar::default);
        if similar.last.is_none_or(|last| now.duration_since(last).as_secs() > SIMILAR_INTERVAL_SECONDS) {
            similar.messages.clear();
        }
        similar.last = Some(now);
        similar.messages.insert(message.clone());
        if similar.messages.len() < SIMILAR {
            // Two containers of a pod may have the same to tell.
            let part = event.involved_object.field_path.clone().unwrap_or_default();
            return (event, format!("{group}\0{message}\0{part}"));
        }
        // The set grows no further; one place stays free for the next message.
        if let Some(any) = similar.messages.iter().next().cloned() {
            similar.messages.remove(&any);
        }
        let combined = Event {
            metadata: ObjectMeta {
                name: Some(name_for(&event.involved_object, now.as_nanosecond())),
                namespace: event.metadata.namespace,
                ..ObjectMeta::default()
            },
            count: Some(1),
            first_timestamp: Some(truncated(now)),
            last_timestamp: Some(truncated(now)),
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
        let seen = self.seen.get_or_insert_with(key, Seen::default);
        let repeated = seen.count > 0;
        if repeated {
            event.metadata.name = seen.name.clone();
            event.first_timestamp = seen.first.clone();
            event.count = Some(seen.count + 1);
        }
        *seen = Seen {
            count: event.count.unwrap_or(1),
            name: event.metadata.name.clone(),
            first: event.first_timestamp.clone(),
        };
        (event, repeated)
    }

    fn is_allowed(&mut self, talker: String, now: Timestamp) -> bool {
        let allowance = self.allowance.get_or_insert_with(talker, || Allowance { tokens: BURST, at: now });
        let gained = now.duration_since(allowance.at).as_secs_f64().max(0.0) / REFILL_SECONDS;
        allowance.tokens = (allowance.tokens + gained).min(BURST);
        allowance.at = now;
        let allowed = allowance.tokens >= 1.0;
        if allowed {
            allowance.tokens -= 1.0;
        }
        allowed
    }
}

/// Who speaks about what, and how urgently.
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
    use k8s_openapi::api::core::v1::ObjectReference;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event(message: &str, second: i64) -> Event {
        let involved_object = ObjectReference { name: Some("web".into()), ..Default::default() };
        Event {
            metadata: ObjectMeta { name: Some(format!("web.{second:x}")), ..Default::default() },
            message: Some(message.into()),
            reason: Some("Failed".into()),
            count: Some(1),
            first_timestamp: Some(Time(at(second))),
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
        assert_eq!(repeated.first_timestamp, Some(Time(at(1))));
        assert!(matches!(correlator.observe(event("other", 3), at(3)), Outcome::Create(_)));
        let mut of_part = event("no", 4);
        of_part.involved_object.field_path = Some("spec.containers{b}".into());
        assert!(matches!(correlator.observe(of_part, at(4)), Outcome::Create(_)), "of another part");
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
    fn a_talkative_object_is_muted_and_recovers() {
        let mut correlator = Correlator::new();
        let spoken = (0..40).filter(|_| !matches!(correlator.observe(event("no", 1), at(1)), Outcome::Skip)).count();
        assert_eq!(spoken, 25);
        assert!(!matches!(correlator.observe(event("no", 302), at(302)), Outcome::Skip), "one more after 300 s");
        assert!(matches!(correlator.observe(event("no", 303), at(303)), Outcome::Skip));
    }
}
