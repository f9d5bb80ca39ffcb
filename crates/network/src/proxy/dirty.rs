//! Collects what may have changed since the last sync, from the handlers of informers.

use std::collections::BTreeSet;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::Change;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::objects::{changed_at, key, service_of_slice};

/// Services that may have changed since the last sync.
#[derive(Default)]
pub struct Dirty {
    marked: Mutex<Marked>,
    notify: Notify,
}

#[derive(Default)]
struct Marked {
    keys: BTreeSet<String>,
    all: bool,
    nodes: bool,
    changed_at: Vec<SystemTime>,
}

/// The changes that a sync applies.
pub struct Pending {
    pub keys: BTreeSet<String>,
    pub changed_at: Vec<SystemTime>,
    /// Whether addresses or networks of nodes have changed.
    pub nodes: bool,
}

impl Dirty {
    pub fn service(&self, change: &Change<Service>) {
        self.add([key(&change.latest().metadata)], None);
    }

    pub fn slice(&self, change: &Change<EndpointSlice>) {
        let before = change.previous().map(|slice| service_of_slice(slice)).unwrap_or_default();
        let moment = changed_at(change.latest());
        let is_news = change.previous().is_some_and(|before| changed_at(before) != moment);
        self.add(before.into_iter().chain(service_of_slice(change.latest())), moment.filter(|_| is_news));
    }

    pub fn add(&self, keys: impl IntoIterator<Item = String>, changed_at: Option<SystemTime>) {
        let mut marked = self.marked.lock();
        marked.keys.extend(keys);
        marked.changed_at.extend(changed_at);
        self.notify.notify_one();
    }

    pub fn all(&self) {
        self.marked.lock().all = true;
        self.notify.notify_one();
    }

    /// Addresses or networks of nodes have changed.
    pub fn nodes(&self) {
        self.marked.lock().nodes = true;
        self.notify.notify_one();
    }

    /// `every` names all Services, `capturing` those that depend on the addresses of nodes: a node that joins must not
    /// cost a check of each of ten thousand others.
    pub fn take(&self, every: impl FnOnce() -> Vec<String>, capturing: impl FnOnce() -> Vec<String>) -> Pending {
        let mut marked = std::mem::take(&mut *self.marked.lock());
        match (marked.all, marked.nodes) {
            (true, _) => marked.keys.extend(every()),
            (false, true) => marked.keys.extend(capturing()),
            (false, false) => {}
        }
        Pending { keys: marked.keys, changed_at: marked.changed_at, nodes: marked.nodes }
    }

    pub async fn changed(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_node_concerns_only_services_that_capture_addresses() {
        let dirty = Dirty::default();
        let keys = |dirty: &Dirty| {
            let pending = dirty.take(|| vec!["n/all".to_owned()], || vec!["n/capturing".to_owned()]);
            (pending.keys.into_iter().collect::<Vec<_>>().join(" "), pending.nodes)
        };
        assert_eq!(keys(&dirty), (String::new(), false));
        dirty.nodes();
        dirty.add(["n/one".to_owned()], None);
        assert_eq!(keys(&dirty), ("n/capturing n/one".to_owned(), true));
        dirty.all();
        dirty.nodes();
        assert_eq!(keys(&dirty), ("n/all".to_owned(), true));
        assert_eq!(keys(&dirty), (String::new(), false));
    }
}
