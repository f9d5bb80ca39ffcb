//! What changes in the API become for the scheduler: messages to the one task that owns its state.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_client::{Change, Informers};
use tokio::sync::mpsc::UnboundedSender;

use crate::cluster::pod::pod_key;

/// A change, or the end of something that was in flight.
pub enum Message {
    Pod { old: Option<Arc<Pod>>, new: Option<Arc<Pod>> },
    Node { old: Option<Arc<Node>>, new: Option<Arc<Node>> },
    Namespace { old: Option<Arc<Namespace>>, new: Option<Arc<Namespace>> },
    Budget { old: Option<Arc<PodDisruptionBudget>>, new: Option<Arc<PodDisruptionBudget>> },
    Bound { key: Arc<str> },
    BindFailed { key: Arc<str>, error: String, gone: bool },
}

/// Sends every change; the channel holds at most what the API has changed since the task last looked.
pub fn watch(informers: &Informers, messages: &UnboundedSender<Message>) {
    let sender = messages.clone();
    informers.of::<Node>().on_change(move |change| {
        let (old, new) = both(change);
        let _ = sender.send(Message::Node { old, new });
    });
    let sender = messages.clone();
    informers.of::<Namespace>().on_change(move |change| {
        let (old, new) = both(change);
        let _ = sender.send(Message::Namespace { old, new });
    });
    let sender = messages.clone();
    informers.of::<PodDisruptionBudget>().on_change(move |change| {
        let (old, new) = both(change);
        let _ = sender.send(Message::Budget { old, new });
    });
    let sender = messages.clone();
    informers.of::<Pod>().on_change(move |change| {
        let (old, new) = both(change);
        let _ = sender.send(Message::Pod { old, new });
    });
}

fn both<K>(change: &Change<K>) -> (Option<Arc<K>>, Option<Arc<K>>) {
    match change {
        Change::Added(new) => (None, Some(Arc::clone(new))),
        Change::Updated { old, new } => (Some(Arc::clone(old)), Some(Arc::clone(new))),
        Change::Deleted(old) => (Some(Arc::clone(old)), None),
    }
}

pub fn key_of(pod: &Pod) -> Arc<str> {
    pod_key(pod)
}
