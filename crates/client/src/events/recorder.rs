//! The recorder of core/v1 events, as controllers and the kubelet use them: repeats increase a count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;

use super::correlator::{Correlator, Outcome};
use super::serial_writes::{SerialWrites, WriteSlot};
use super::writer::Writer;
use super::{EventType, MAX_QUEUED, Now, name_for, namespace_of, reference, shortened};
use crate::api_error::is_not_found;
use crate::time::truncated;

/// Records core/v1 events.
#[derive(Clone)]
pub struct EventRecorder {
    component: String,
    host: Option<String>,
    /// Boxed: a queue has room for 32 values from its start, and most recorders have nothing to record.
    queue: mpsc::Sender<Box<Event>>,
}

impl EventRecorder {
    /// Records as `component` ("deployment-controller"); `host` is the node's name for components on nodes.
    ///
    /// The background task stops when the last clone is dropped.
    pub fn new(client: Client, component: &str, host: Option<&str>) -> Self {
        let (queue, events) = mpsc::channel(MAX_QUEUED);
        knarr_supervisor::spawn_linked("event-writer", write(client, events));
        Self { component: component.to_owned(), host: host.map(str::to_owned), queue }
    }

    /// Records an event of type Normal.
    pub fn normal<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, message: impl Into<String>) {
        self.about(reference(object), EventType::Normal, reason, message);
    }

    /// Records an event of type Warning.
    pub fn warning<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, message: impl Into<String>) {
        self.about(reference(object), EventType::Warning, reason, message);
    }

    /// Records an event about a referenced object.
    pub fn about(&self, object: ObjectReference, kind: EventType, reason: &str, message: impl Into<String>) {
        self.annotated(object, kind, reason, message, None);
    }

    /// Records an event with annotations.
    pub fn annotated(
        &self,
        object: ObjectReference,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
        annotations: Option<std::collections::BTreeMap<String, String>>,
    ) {
        let now = Timestamp::now();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name_for(&object, now.as_nanosecond())),
                namespace: Some(namespace_of(&object)),
                annotations,
                ..ObjectMeta::default()
            },
            involved_object: object,
            reason: Some(reason.to_owned()),
            message: Some(shortened(message.into())),
            type_: Some(kind.as_str().to_owned()),
            first_timestamp: Some(truncated(now)),
            last_timestamp: Some(truncated(now)),
            count: Some(1),
            source: Some(EventSource { component: Some(self.component.clone()), host: self.host.clone() }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone().unwrap_or_default()),
            ..Event::default()
        };
        if self.queue.try_send(Box::new(event)).is_err() {
            tracing::debug!(component = %self.component, reason, "the event queue is full; dropping an event");
        }
    }
}

async fn write(client: Client, mut events: mpsc::Receiver<Box<Event>>) {
    let mut correlator = Correlator::new();
    let writer = Writer::new();
    let writes = SerialWrites::default();
    while let Some(event) = events.recv().await {
        let (event, repeated) = match correlator.observe(*event, Now::read()) {
            Outcome::Create(event) => (*event, false),
            Outcome::Repeat(event) => (*event, true),
            Outcome::Skip => continue,
        };
        let namespace = event.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let key = format!("{namespace}/{}", event.metadata.name.as_deref().unwrap_or_default());
        let Some(slot) = writes.enqueue(key, event) else { continue };
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let (slot, is_repeat) = (Arc::new(slot), AtomicBool::new(repeated));
        writer.spawn(move || send_all(api.clone(), slot.clone(), is_repeat.swap(true, Ordering::Relaxed))).await;
    }
}

/// Writes the event, and then its newer versions that were queued in the meantime.
async fn send_all(api: Api<Event>, slot: Arc<WriteSlot<Event>>, mut repeated: bool) -> Result<(), kube::Error> {
    while let Some(event) = slot.next() {
        send(&api, &event, repeated).await.inspect_err(|_| slot.put_back(event))?;
        repeated = true;
    }
    Ok(())
}

async fn send(api: &Api<Event>, event: &Event, repeated: bool) -> Result<(), kube::Error> {
    if repeated {
        let changes = json!({"count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message});
        let name = event.metadata.name.as_deref().unwrap_or_default();
        match api.patch(name, &PatchParams::default(), &Patch::Strategic(changes)).await {
            // It has expired: create it again.
            Err(error) if is_not_found(&error) => {}
            result => return result.map(drop),
        }
    }
    api.create(&PostParams::default(), event).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::MAX_MESSAGE_BYTES;

    #[test]
    fn long_messages_wait_shortened() {
        let (queue, mut events) = mpsc::channel(1);
        let recorder = EventRecorder { component: "test".to_owned(), host: None, queue };
        recorder.about(ObjectReference::default(), EventType::Normal, "Test", "ä".repeat(1 << 20));
        let message = events.try_recv().expect("an event").message;
        assert_eq!(message.map(|message| message.len()), Some(MAX_MESSAGE_BYTES));
    }
}
