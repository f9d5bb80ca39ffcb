//! The recorder of events.k8s.io/v1 events, as the scheduler uses them: repeats become a series, which is written when it
//! starts, periodically while it lasts, and when it is finished.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::writer::Writer;
use super::{EventType, MAX_QUEUED, Now, name_for, namespace_of};
use crate::api_error::{has_code, is_not_found};

/// A series without an event for this long is finished.
const FINISHED_AFTER: Duration = Duration::from_secs(6 * 60);
const FINISH_INTERVAL: Duration = Duration::from_secs(6 * 60);
/// A lasting series is written this often, so that it does not expire.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Records events.k8s.io/v1 events.
#[derive(Clone)]
pub struct SeriesRecorder {
    controller: String,
    instance: String,
    queue: mpsc::Sender<Event>,
}

impl SeriesRecorder {
    /// Records as `controller` ("default-scheduler") on `host`.
    pub fn new(client: Client, controller: &str, host: &str) -> Self {
        let (queue, events) = mpsc::channel(MAX_QUEUED);
        knarr_supervisor::spawn_linked("event-writer", write(client, events));
        Self { controller: controller.to_owned(), instance: format!("{controller}-{host}"), queue }
    }

    /// Records an event. `action` is the operation ("Scheduling", "Binding"), `related` a second object.
    pub fn record(
        &self,
        regarding: ObjectReference,
        related: Option<ObjectReference>,
        kind: EventType,
        reason: &str,
        action: &str,
        note: impl Into<String>,
    ) {
        let now = Timestamp::now();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name_for(&regarding, now.as_nanosecond())),
                namespace: Some(namespace_of(&regarding)),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(action.to_owned()),
            reason: Some(reason.to_owned()),
            regarding: Some(regarding),
            related,
            note: Some(truncated(note.into())),
            type_: Some(kind.as_str().to_owned()),
            ..Event::default()
        };
        if self.queue.try_send(event).is_err() {
            tracing::debug!(controller = %self.controller, reason, "the event queue is full; dropping an event");
        }
    }
}

/// Truncates a note to the API's limit of 1 KiB.
fn truncated(mut note: String) -> String {
    const MAX_NOTE_LENGTH: usize = 1024;
    if note.len() > MAX_NOTE_LENGTH {
        let mut end = MAX_NOTE_LENGTH - 4;
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push_str(" ...");
    }
    note
}

async fn write(client: Client, mut events: mpsc::Receiver<Event>) {
    let writer = Writer::new();
    let mut active = ActiveSeries::default();
    let mut finish = tokio::time::interval(FINISH_INTERVAL);
    let mut refresh = tokio::time::interval(REFRESH_INTERVAL);
    loop {
        let due = tokio::select! {
            event = events.recv() => match event {
                Some(event) => active.observe(event, Now::read()).into_iter().collect(),
                None => return,
            },
            _ = finish.tick() => active.finished(Instant::now()),
            _ = refresh.tick() => active.series(),
        };
        for event in due {
            let api: Api<Event> =
                Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or("default"));
            writer.spawn(move || send(api.clone(), event.clone())).await;
        }
    }
}

async fn send(api: Api<Event>, event: Arc<Event>) -> Result<(), kube::Error> {
    let Some(series) = &event.series else {
        return api.create(&PostParams::default(), &event).await.map(drop);
    };
    let name = event.metadata.name.as_deref().unwrap_or_default();
    let patch = Patch::Strategic(json!({ "series": series }));
    match api.patch(name, &PatchParams::default(), &patch).await {
        Err(error) if is_not_found(&error) => {}
        result => return result.map(drop),
    }
    match api.create(&PostParams::default(), &event).await {
        // The series started before its first event was written; now it is.
        Err(error) if has_code(&error, 409) => api.patch(name, &PatchParams::default(), &patch).await.map(drop),
        result => result.map(drop),
    }
}

/// Identifies events that are equal except for their time. The note is included: a pod may be tried again, and fail for
/// another reason, before its new version is known here. A 128-bit hash with random keys instead of the text, since
/// thousands are kept and no two may collide.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct EventKey(u64, u64);

#[derive(Default)]
struct ActiveSeries {
    events: HashMap<EventKey, Active>,
    keys: [RandomState; 2],
}

/// An event that may be repeated.
enum Active {
    /// An event that was not repeated yet. Most never are, so only what a repeat does not contain is kept.
    Once { name: Option<Box<str>>, time: Timestamp, observed: Instant },
    /// With the time of the last repeat.
    Series(Box<Event>, Instant),
}

impl ActiveSeries {
    fn event_key(&self, event: &Event) -> EventKey {
        let content = (&event.type_, &event.action, &event.reason, &event.note);
        let all = (content, event.regarding.as_ref().map(identity), event.related.as_ref().map(identity));
        EventKey(self.keys[0].hash_one(all), self.keys[1].hash_one(all))
    }

    /// The event to write now, if any.
    fn observe(&mut self, mut event: Event, now: Now) -> Option<Arc<Event>> {
        let key = self.event_key(&event);
        let known = match self.events.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let time = event.event_time.as_ref().map_or(now.wall, |time| time.0);
                let name = event.metadata.name.as_deref().map(Box::from);
                unknown.insert(Active::Once { name, time, observed: now.monotonic });
                return Some(Arc::new(event));
            }
        };
        match known {
            Active::Series(first, last) => {
                *last = now.monotonic;
                if let Some(series) = &mut first.series {
                    series.count += 1;
                    series.last_observed_time = MicroTime(now.wall);
                }
                None
            }
            Active::Once { name, time, .. } => {
                event.metadata.name = name.take().map(String::from);
                event.event_time = Some(MicroTime(*time));
                event.series = Some(EventSeries { count: 2, last_observed_time: MicroTime(now.wall) });
                *known = Active::Series(Box::new(event.clone()), now.monotonic);
                Some(Arc::new(event))
            }
        }
    }

    /// Removes inactive events and returns the finished series, whose last count must be written.
    fn finished(&mut self, now: Instant) -> Vec<Arc<Event>> {
        let over = self.events.extract_if(|_, active| match active {
            Active::Once { observed: last, .. } | Active::Series(_, last) => now.duration_since(*last) > FINISHED_AFTER,
        });
        let finished = over.filter_map(|(_, active)| match active {
            Active::Once { .. } => None,
            Active::Series(event, _) => Some(Arc::from(event)),
        });
        finished.collect()
    }

    fn series(&self) -> Vec<Arc<Event>> {
        let events = self.events.values().filter_map(|active| match active {
            Active::Once { .. } => None,
            Active::Series(event, _) => Some(Arc::new((**event).clone())),
        });
        events.collect()
    }
}

/// The identity of an object with the version that the event refers to.
fn identity(object: &ObjectReference) -> [&Option<String>; 7] {
    [
        &object.kind,
        &object.namespace,
        &object.name,
        &object.uid,
        &object.api_version,
        &object.resource_version,
        &object.field_path,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Now {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        Now { wall: Timestamp::from_second(second).unwrap(), monotonic: *START + Duration::from_secs(second as u64) }
    }

    fn event(reason: &str, second: i64) -> Event {
        Event { reason: Some(reason.into()), event_time: Some(MicroTime(at(second).wall)), ..Event::default() }
    }

    #[test]
    fn repeats_become_a_series_that_is_written_when_it_starts_and_finishes() {
        let mut active = ActiveSeries::default();
        let mut first = event("FailedScheduling", 0);
        first.metadata.name = Some("first".into());
        assert!(active.observe(first, at(0)).unwrap().series.is_none());
        let started = active.observe(event("FailedScheduling", 1), at(1)).unwrap();
        assert_eq!(started.series.as_ref().unwrap().count, 2);
        assert_eq!(
            (started.metadata.name.as_deref(), started.event_time.clone()),
            (Some("first"), Some(MicroTime(at(0).wall)))
        );
        assert!(active.observe(event("FailedScheduling", 2), at(2)).is_none());
        assert!(active.observe(event("Scheduled", 2), at(2)).is_some());
        let other = Event { note: Some("another reason".into()), ..event("FailedScheduling", 2) };
        assert!(active.observe(other, at(2)).unwrap().series.is_none());
        assert!(active.finished(at(60).monotonic).is_empty());
        let over = active.finished(at(3 + 360).monotonic);
        assert_eq!(over.iter().map(|event| event.series.as_ref().unwrap().count).collect::<Vec<_>>(), [3]);
        assert!(active.events.is_empty());
    }
}
