//! Leading what the runtime tells to the pod it concerns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use knarr_cri::Runtime;
use knarr_cri::events::{ContainerEvent, EventError, subscribe};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use crate::worker::Message;

/// Which worker is to hear of which container or sandbox.
#[derive(Clone, Default)]
pub struct Index(Arc<Mutex<HashMap<String, UnboundedSender<Message>>>>);

impl Index {
    pub fn insert(&self, id: &str, worker: UnboundedSender<Message>) {
        self.0.lock().insert(id.to_string(), worker);
    }

    pub fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    fn tell(&self, id: &str, message: Message) {
        let worker = self.0.lock().get(id).cloned();
        // A worker that has ended needs no news.
        worker.map(|worker| worker.send(message));
    }

    fn tell_all(&self) {
        for worker in self.0.lock().values() {
            let _ = worker.send(Message::Relist);
        }
    }
}

/// Without events, looking is all that is left.
const RELIST_WITHOUT_EVENTS: Duration = Duration::from_secs(1);
const LOOK_AFTER_SUBSCRIBING: Duration = Duration::from_millis(300);
/// With events, a rare look guards against one lost on the way.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(60);

/// Runs for as long as the node does.
pub async fn follow(runtime: Runtime, index: Index) {
    let mut pause = Duration::from_millis(100);
    loop {
        let mut stream = subscribe(&runtime);
        // What happened while nobody listened is found by looking once the subscription stands.
        let first = tokio::time::Instant::now() + LOOK_AFTER_SUBSCRIBING;
        let mut looks = tokio::time::interval_at(first, RELIST_WITH_EVENTS);
        let error = loop {
            let item = tokio::select! {
                item = stream.next() => item,
                _ = looks.tick() => {
                    index.tell_all();
                    continue;
                }
            };
            match item {
                Some(Ok(event)) => {
                    pause = Duration::from_millis(100);
                    match event {
                        ContainerEvent::Exited { id } => index.tell(&id, Message::Exited(id.clone())),
                        ContainerEvent::Changed { id } => index.tell(&id, Message::Changed(id.clone())),
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        match error {
            Some(EventError::Unsupported) => relist_for_ever(&index).await,
            Some(error) => tracing::debug!(%error, "the runtime's events stopped"),
            None => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

async fn relist_for_ever(index: &Index) {
    tracing::warn!("the runtime tells no events: its containers are listed every second");
    loop {
        tokio::time::sleep(RELIST_WITHOUT_EVENTS).await;
        index.tell_all();
    }
}
