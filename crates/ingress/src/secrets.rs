//! The TLS secrets that ingresses name, each followed by itself: a node may read these and no others.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use knarr_client::kube::runtime::watcher::watch_object;
use knarr_client::kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Namespace and name.
pub type Key = (String, String);

/// The right to read a secret may come a moment after the ingress that names it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

pub struct Secrets {
    client: Client,
    followed: Mutex<HashMap<Key, Followed>>,
    on_change: Arc<dyn Fn() + Send + Sync>,
}

/// What is known of a secret: nothing yet, that there is none, or the secret.
type Known = Option<Option<Arc<Secret>>>;

struct Followed {
    known: watch::Receiver<Known>,
    task: AbortHandle,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Secrets {
    /// `on_change` is called after each change of a secret that is followed.
    pub fn new(client: Client, on_change: impl Fn() + Send + Sync + 'static) -> Self {
        Self { client, followed: Mutex::default(), on_change: Arc::new(on_change) }
    }

    /// Follows these and no others.
    pub fn follow(&self, wanted: &BTreeSet<Key>) {
        let mut followed = self.followed.lock();
        followed.retain(|key, _| wanted.contains(key));
        for key in wanted {
            if !followed.contains_key(key) {
                followed.insert(key.clone(), self.start(key));
            }
        }
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        let followed = self.followed.lock();
        let found = followed.get(&(namespace.to_owned(), name.to_owned()))?;
        found.known.borrow().clone().flatten()
    }

    /// Waits until of each secret that is followed it is known whether there is one.
    pub async fn known(&self) {
        let all: Vec<watch::Receiver<Known>> = self.followed.lock().values().map(|one| one.known.clone()).collect();
        for mut one in all {
            // Nobody follows it any more: there is nothing to wait for.
            let _ = one.wait_for(Option::is_some).await;
        }
    }

    fn start(&self, (namespace, name): &Key) -> Followed {
        let (told, known) = watch::channel(None);
        let (api, name) = (Api::<Secret>::namespaced(self.client.clone(), namespace), name.clone());
        let on_change = Arc::clone(&self.on_change);
        let task = tokio::spawn(async move {
            let mut states = pin!(watch_object(api, &name));
            let mut pause = SHORTEST_PAUSE;
            while let Some(state) = states.next().await {
                match state {
                    Ok(secret) => {
                        told.send_replace(Some(secret.map(Arc::new)));
                        on_change();
                        pause = SHORTEST_PAUSE;
                    }
                    Err(error) => {
                        tracing::debug!(secret = name, %error, "a TLS secret cannot be read; will try again");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
        });
        Followed { known, task: task.abort_handle() }
    }
}
