//! Pods that the CNI plugin has just attached. Their addresses are known here before the pod's status has them, so that
//! policies are in force before a pod's first packet: the plugin reports the attachment and waits, with a timeout, until the
//! rules for that pod are in the kernel. While policies exist, an unknown pod has no network (`tables`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use crate::cni::Lease;
use crate::cni::announcement::{Attached, CONFIRM_TIMEOUT, SOCKET};

const MAX_MESSAGE: u64 = 4096;

/// This node's attachments, and the plugin calls that wait for rules.
#[derive(Default)]
pub struct Attachments {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By namespace/name.
    known: HashMap<String, Attached>,
    waiting: Vec<(Attached, oneshot::Sender<()>)>,
    /// Whether any policies exist.
    is_enforcing: bool,
}

impl Attachments {
    /// Loads the leases that were created before this process started.
    pub fn load(&self, leases: Vec<Lease>) {
        for lease in leases {
            if let Some(pod) = lease.pod {
                self.add(Attached { pod, addresses: lease.addresses });
            }
        }
    }

    fn add(&self, attached: Attached) {
        let mut state = self.state.lock();
        // An address belongs to the pod that got it last.
        state.known.retain(|_, other| !other.addresses.iter().any(|address| attached.addresses.contains(address)));
        state.known.insert(attached.pod.key(), attached);
    }

    /// The addresses of a pod, if its UID matches.
    pub fn addresses(&self, key: &str, uid: &str) -> Option<Vec<IpAddr>> {
        let state = self.state.lock();
        let attached = state.known.get(key)?;
        let is_same = attached.pod.uid.is_empty() || attached.pod.uid == uid;
        is_same.then(|| attached.addresses.clone())
    }

    /// From now on, plugin calls wait for rules.
    pub fn enforce(&self) {
        self.state.lock().is_enforcing = true;
    }

    /// Releases the calls whose rules are in the kernel.
    pub fn confirm(&self, is_in_force: impl Fn(&Attached) -> bool) {
        let waiting = &mut self.state.lock().waiting;
        for index in (0..waiting.len()).rev() {
            if waiting[index].1.is_closed() {
                drop(waiting.swap_remove(index));
            } else if is_in_force(&waiting[index].0) {
                // The receiver may have timed out.
                let _ = waiting.swap_remove(index).1.send(());
            }
        }
    }

    /// Records an attachment; returns a receiver if the caller must wait for its rules.
    fn register(&self, attached: Attached) -> Option<oneshot::Receiver<()>> {
        self.add(attached.clone());
        let mut state = self.state.lock();
        state.is_enforcing.then(|| {
            let (sender, receiver) = oneshot::channel();
            state.waiting.push((attached, sender));
            receiver
        })
    }
}

/// Serves plugin calls until dropped. `changed` is called for each pod.
pub async fn serve(data_directory: PathBuf, attachments: Arc<Attachments>, changed: impl Fn(String) + Clone) {
    let path = data_directory.join(SOCKET);
    let listener = match listen(&path) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "cannot listen for the CNI plugin; policies of new pods wait for their status");
            return;
        }
    };
    let mut calls = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = calls.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let (attachments, changed) = (Arc::clone(&attachments), changed.clone());
                let (sender, receiver) = oneshot::channel();
                calls.spawn(async move {
                    let responded = tokio::time::timeout(CONFIRM_TIMEOUT, handle(stream, &attachments, sender)).await;
                    if let Ok(Err(error)) = responded {
                        tracing::debug!(%error, "cannot parse a message of the CNI plugin");
                    }
                });
                if let Ok(key) = receiver.await {
                    changed(key);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of the CNI plugin");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The socket, accessible to root only.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn handle(
    stream: UnixStream,
    attachments: &Attachments,
    reported: oneshot::Sender<String>,
) -> std::io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    tokio::io::BufReader::new(reading.take(MAX_MESSAGE)).read_line(&mut line).await?;
    let attached: Attached = serde_json::from_str(&line)?;
    let key = attached.pod.key();
    let rules = attachments.register(attached);
    // The receiver lives as long as this task.
    let _ = reported.send(key);
    if let Some(rules) = rules {
        let _ = rules.await;
    }
    writing.write_all(b"ok\n").await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::PodName;

    fn attached(name: &str, uid: &str, address: &str) -> Attached {
        let pod = PodName { namespace: "n".into(), name: name.into(), uid: uid.into() };
        Attached { pod, addresses: vec![address.parse().unwrap()] }
    }

    #[test]
    fn an_address_belongs_to_its_last_pod() {
        let attachments = Attachments::default();
        assert!(attachments.register(attached("a", "1", "10.0.0.1")).is_none(), "nothing is enforced");
        assert!(attachments.addresses("n/a", "1").is_some());
        assert!(attachments.addresses("n/a", "2").is_none(), "another pod of that name");
        attachments.register(attached("b", "", "10.0.0.1"));
        assert!(attachments.addresses("n/a", "1").is_none() && attachments.addresses("n/b", "9").is_some());
    }

    #[tokio::test]
    async fn a_waiting_call_continues_when_rules_are_in_force() {
        let attachments = Attachments::default();
        attachments.enforce();
        let mut waits = attachments.register(attached("a", "1", "10.0.0.1")).unwrap();
        attachments.confirm(|_| false);
        assert!(waits.try_recv().is_err());
        attachments.confirm(|one| one.pod.name == "a");
        waits.await.unwrap();
    }
}
