//! Events of events.k8s.io/v1, as the scheduler writes them: repeats become a series, written when it begins, now and then
//! while it lasts, and when it ends.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use super::writer::{Writer, exists_already, is_missing};
use super::{EventType, QUEUED, name_for, namespace_of};

/// A series nobody added to for this long is over.
const FINISHED_AFTER: SignedDuration = SignedDuration::from_mins(6);
const FINISH_EVERY: Duration = Duration::from_secs(6 * 60);
/// A lasting series is written this often, so that it does not run out.
const REFRESH_EVERY: Duration = Duration::from_secs(30 * 60);

#[derive(Clone)]
pub struct SeriesRecorder {
    controller: String,
    instance: String,
    queue: mpsc::Sender<Event>,
}

impl SeriesRecorder {
    /// Records as `controller` ("default-scheduler") on `host`.
    pub fn new(client: Client, controller: &str, host: &str) -> Self {
        let (queue, events) = mpsc::channel(QUEUED);
        tokio::spawn(write(client, events));
        Self { controller: controller.to_owned(), instance: format!("{controller}-{host}"), queue }
    }

    /// `action` is what was being done ("Scheduling", "Binding"), `related` the other object it concerned.
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
            note: Some(limited(note.into())),
            type_: Some(kind.as_str().to_owned()),
            ..Event::default()
        };
        if self.queue.try_send(event).is_err() {
            tracing::debug!(controller = %self.controller, reason, "too many events wait; one was dropped");
        }
    }
}

/// The API refuses notes of more than 1 KiB.
fn limited(mut note: String) -> String {
    const LONGEST: usize = 1024;
    if note.len() > LONGEST {
        let mut end = LONGEST - 4;
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
    let mut current = Current::default();
    let mut finish = tokio::time::interval(FINISH_EVERY);
    let mut refresh = tokio::time::interval(REFRESH_EVERY);
    loop {
        let due = tokio::select! {
            event = events.recv() => match event {
                Some(event) => current.observe(event, Timestamp::now()).into_iter().collect(),
                None => return,
            },
            _ = finish.tick() => current.finished(Timestamp::now()),
            _ = refresh.tick() => current.series(),
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
        Err(error) if is_missing(&error) => {}
        answer => return answer.map(drop),
    }
    match api.create(&PostParams::default(), &event).await {
        // The series began before its first event was written; now it is.
        Err(error) if exists_already(&error) => api.patch(name, &PatchParams::default(), &patch).await.map(drop),
        answer => answer.map(drop),
    }
}

/// Stands for what makes two events the same but for their time. The note is part of it: a pod may be tried again, and fail for
/// another reason, before its new version is known here. Thousands are remembered, so a hash in place of the words:
/// of 128 bits with keys of this process' own, so that no two are taken for one.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct Likeness(u64, u64);

#[derive(Default)]
struct Current {
    events: HashMap<Likeness, Event>,
    keys: [RandomState; 2],
}

impl Current {
    fn likeness(&self, event: &Event) -> Likeness {
        let what = (&event.type_, &event.action, &event.reason, &event.note);
        let all = (what, event.regarding.as_ref().map(regarded), event.related.as_ref().map(regarded));
        Likeness(self.keys[0].hash_one(all), self.keys[1].hash_one(all))
    }

    /// What to write now, if anything.
    fn observe(&mut self, event: Event, now: Timestamp) -> Option<Arc<Event>> {
        let likeness = self.likeness(&event);
        let Some(known) = self.events.get_mut(&likeness) else {
            self.events.insert(likeness, event.clone());
            return Some(Arc::new(event));
        };
        match &mut known.series {
            Some(series) => {
                series.count += 1;
                series.last_observed_time = MicroTime(now);
                None
            }
            None => {
                known.series = Some(EventSeries { count: 2, last_observed_time: MicroTime(now) });
                Some(Arc::new(known.clone()))
            }
        }
    }

    /// Forgets what has not happened for a while and returns the series whose last count is to be written.
    fn finished(&mut self, now: Timestamp) -> Vec<Arc<Event>> {
        let mut over = Vec::new();
        self.events.retain(|_, event| {
            let last = match &event.series {
                Some(series) => Some(series.last_observed_time.0),
                None => event.event_time.as_ref().map(|time| time.0),
            };
            let lasts = last.is_some_and(|last| now.duration_since(last) <= FINISHED_AFTER);
            if !lasts && event.series.is_some() {
                over.push(Arc::new(event.clone()));
            }
            lasts
        });
        over
    }

    fn series(&self) -> Vec<Arc<Event>> {
        self.events.values().filter(|event| event.series.is_some()).cloned().map(Arc::new).collect()
    }
}

/// Identity of an object together with the version the event speaks of.
fn regarded(object: &ObjectReference) -> [&Option<String>; 7] {
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

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event(reason: &str, second: i64) -> Event {
        Event { reason: Some(reason.into()), event_time: Some(MicroTime(at(second))), ..Event::default() }
    }

    #[test]
    fn repeats_become_a_series_that_is_written_when_it_begins_and_ends() {
        let mut current = Current::default();
        assert!(current.observe(event("FailedScheduling", 0), at(0)).unwrap().series.is_none());
        assert_eq!(current.observe(event("FailedScheduling", 1), at(1)).unwrap().series.as_ref().unwrap().count, 2);
        assert!(current.observe(event("FailedScheduling", 2), at(2)).is_none());
        assert!(current.observe(event("Scheduled", 2), at(2)).is_some());
        let other = Event { note: Some("another reason".into()), ..event("FailedScheduling", 2) };
        assert!(current.observe(other, at(2)).unwrap().series.is_none());
        assert!(current.finished(at(60)).is_empty());
        let over = current.finished(at(3 + 360));
        assert_eq!(over.iter().map(|event| event.series.as_ref().unwrap().count).collect::<Vec<_>>(), [3]);
        assert!(current.events.is_empty());
    }
}
