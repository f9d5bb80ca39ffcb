//! The watches of the workload, which record every event and resume after the last one at another server.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use knarr_client::k8s_openapi::api::coordination::v1::Lease;
use knarr_client::k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::kube::api::{WatchEvent, WatchParams};
use knarr_client::kube::{self, Api, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::history::{DELETED, Event, Version};
use crate::leaders::{Holding, LEASES};
use crate::workload::{LABEL, PAUSE, Shared, response, value, version};

/// Writers write all the time, and Leases are renewed: a watch without events for this long hangs.
const WATCH_TIMEOUT: Duration = Duration::from_secs(4);

impl Shared {
    /// Watches the objects of the workload.
    pub(crate) async fn watch(self: Arc<Self>, number: usize, from: Version) {
        let see = |map: &ConfigMap, is_deleted: bool| {
            let value = if is_deleted { DELETED.to_owned() } else { value(map) };
            let event = Event { key: map.name_any(), value, version: version(map) };
            self.records.lock().watches[number].push(event);
        };
        let parameters = WatchParams::default().labels(LABEL);
        self.watch_all(|server| self.maps(server), &parameters, number, from, see).await;
    }

    /// Watches who holds the Leases.
    pub(crate) async fn watch_leases(self: Arc<Self>, from: Version) {
        let api = |server: usize| Api::namespaced(self.clients[server % self.clients.len()].clone(), "kube-system");
        let see = |lease: &Lease, _| {
            let name = lease.name_any();
            if LEASES.contains(&name.as_str()) {
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
                self.holdings.lock().push(Holding { lease: name, holder, version: version(lease) });
            }
        };
        self.watch_all(api, &WatchParams::default(), 0, from, see).await;
    }

    /// Watches from a version on; when the watch ends, it is resumed after the last event, at another server.
    async fn watch_all<K>(
        &self,
        api: impl Fn(usize) -> Api<K>,
        parameters: &WatchParams,
        first: usize,
        from: Version,
        see: impl Fn(&K, bool),
    ) where
        K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let (mut server, mut after, mut expired) = (first, from, 0);
        // The last event may have come before anybody knew that it is the last.
        while self.last.lock().is_none_or(|last| after < last) {
            let api = api(server);
            let opened = response(api.watch(parameters, &after.to_string())).await;
            server += 1;
            let Some(Ok(stream)) = opened else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let mut stream = std::pin::pin!(stream);
            while let Ok(Some(event)) = tokio::time::timeout(WATCH_TIMEOUT, stream.next()).await {
                let (object, is_deleted) = match event {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
                    Ok(WatchEvent::Deleted(object)) => (object, true),
                    Ok(WatchEvent::Error(status)) if status.code == 410 => {
                        // A server that has just started has no history; one of the others does.
                        expired += 1;
                        assert!(expired < 30, "no server has the history since {after}");
                        break;
                    }
                    Ok(_) => continue,
                    Err(_) => break,
                };
                expired = 0;
                after = version(&object);
                see(&object, is_deleted);
                if self.last.lock().is_some_and(|last| after >= last) {
                    return;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
