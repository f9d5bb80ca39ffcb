//! Watches the TLS Secrets that Ingresses reference, each by name: a node may read these and no others.

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

/// Backoff: the permission to read a Secret may be granted shortly after the Ingress that references it.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

pub struct Secrets {
    client: Client,
    watched: Mutex<HashMap<Key, SecretWatch>>,
    on_change: Arc<dyn Fn() + Send + Sync>,
}

/// The state of a Secret: unknown, absent, or the Secret.
type SecretState = Option<Option<Arc<Secret>>>;

struct SecretWatch {
    known: watch::Receiver<SecretState>,
    task: AbortHandle,
}

impl Drop for SecretWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Secrets {
    /// `on_change` is called after each change of a watched Secret.
    pub fn new(client: Client, on_change: impl Fn() + Send + Sync + 'static) -> Self {
        Self { client, watched: Mutex::default(), on_change: Arc::new(on_change) }
    }

    /// Watches exactly these Secrets.
    pub fn watch_only(&self, desired: &BTreeSet<Key>) {
        let mut watched = self.watched.lock();
        watched.retain(|key, _| desired.contains(key));
        for key in desired {
            if !watched.contains_key(key) {
                watched.insert(key.clone(), self.start(key));
            }
        }
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        let watched = self.watched.lock();
        let found = watched.get(&(namespace.to_owned(), name.to_owned()))?;
        found.known.borrow().clone().flatten()
    }

    /// Waits until it is known of each watched Secret whether it exists.
    pub async fn known(&self) {
        let all: Vec<watch::Receiver<SecretState>> =
            self.watched.lock().values().map(|one| one.known.clone()).collect();
        for mut one in all {
            // An error means that it is no longer watched: there is nothing to wait for.
            let _ = one.wait_for(Option::is_some).await;
        }
    }

    fn start(&self, (namespace, name): &Key) -> SecretWatch {
        let (sender, known) = watch::channel(None);
        let (api, name) = (Api::<Secret>::namespaced(self.client.clone(), namespace), name.clone());
        let on_change = Arc::clone(&self.on_change);
        let task = knarr_supervisor::spawn_linked("secret-watch", async move {
            let mut states = pin!(watch_object(api, &name));
            let mut pause = MIN_BACKOFF;
            while let Some(state) = states.next().await {
                match state {
                    Ok(secret) => {
                        sender.send_replace(Some(secret.map(Arc::new)));
                        on_change();
                        pause = MIN_BACKOFF;
                    }
                    Err(error) => {
                        tracing::debug!(secret = name, %error, "cannot read a TLS Secret; retrying");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(MAX_BACKOFF);
                    }
                }
            }
        });
        SecretWatch { known, task }
    }
}
