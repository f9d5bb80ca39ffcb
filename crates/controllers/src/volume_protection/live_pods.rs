//! The pods of a namespace as the server has them, for claims that may lose their protection.
//!
//! The cache may not hold a pod that was just bound to a node, so the server is asked. Claims are often deleted by the
//! thousand: all that were queued before a list was requested share it.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::common::Key;

/// The last list of a namespace, and when it was requested. Locked while the next one is.
type LastList = Arc<tokio::sync::Mutex<Option<(Instant, Arc<Vec<Pod>>)>>>;

#[derive(Default)]
pub(super) struct LivePods {
    /// When each claim was queued last: an older list may still contain a pod that is gone.
    queued: Mutex<HashMap<Key, Instant>>,
    lists: Mutex<HashMap<String, LastList>>,
}

impl LivePods {
    pub fn queued(&self, claim: &Key) {
        self.queued.lock().insert(claim.clone(), Instant::now());
    }

    pub fn forget(&self, claim: &Key) {
        self.queued.lock().remove(claim);
    }

    /// The pods of the claim's namespace, no older than the claim's last change.
    pub async fn of(&self, client: &Client, claim: &Key) -> kube::Result<Arc<Vec<Pod>>> {
        let queued = self.queued.lock().remove(claim).unwrap_or_else(Instant::now);
        let last = self.lists.lock().entry(claim.namespace.clone()).or_default().clone();
        let mut last = last.lock().await;
        if let Some((requested, pods)) = &*last
            && *requested > queued
        {
            return Ok(pods.clone());
        }
        let requested = Instant::now();
        let api: Api<Pod> = Api::namespaced(client.clone(), &claim.namespace);
        let pods = Arc::new(api.list(&ListParams::default()).await?.items);
        *last = Some((requested, pods.clone()));
        Ok(pods)
    }

    /// Drops all lists: nothing is queued that could share them.
    pub fn clear(&self) {
        self.lists.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn claims_queued_before_a_list_share_it() {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = lists.clone();
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let list = r#"{"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}"#;
            let response = http::Response::new(kube::client::Body::from(list.as_bytes().to_vec()));
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        });
        let (client, pods) = (Client::new(service, "ns"), LivePods::default());
        let keys: Vec<Key> = (0..1000).map(|number| Key::new("ns", number.to_string())).collect();
        keys.iter().for_each(|key| pods.queued(key));
        tokio::time::advance(Duration::from_millis(1)).await;
        for key in &keys {
            pods.of(&client, key).await.unwrap();
        }
        assert_eq!(lists.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        pods.queued(&keys[0]);
        tokio::time::advance(Duration::from_millis(1)).await;
        pods.of(&client, &keys[0]).await.unwrap();
        assert_eq!(lists.load(Ordering::Relaxed), 2, "it changed after the first list");
    }
}
