//! Pods that the network plugin has just put on the network. Their addresses are known here before any status tells them, so
//! that policies are in force before a pod's first packet: the plugin says what it did and waits, not for long, until the
//! rules for that pod are in the kernel. While policies exist, a pod that is not known yet reaches nobody (`tables`).

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use crate::cni::{Lease, PodName};

const SOCKET: &str = "policy.sock";
/// How long the plugin waits for the rules. A pod that is not known by then starts without a network until it is.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_MESSAGE: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    #[serde(flatten)]
    pub pod: PodName,
    pub addresses: Vec<IpAddr>,
}

/// Tells the running agent of a new attachment, and waits for its rules. Without an agent there is nobody to wait for: the
/// kernel's rules of before hold.
pub fn announce(data_directory: &Path, lease: &Lease) {
    let Some(pod) = lease.pod.clone() else { return };
    let attached = Attached { pod, addresses: lease.addresses.clone() };
    if let Err(error) = tell(&data_directory.join(SOCKET), &attached) {
        tracing::debug!(pod = attached.pod.key(), %error, "network policies of a new pod are not confirmed");
    }
}

fn tell(socket: &Path, attached: &Attached) -> std::io::Result<()> {
    let mut stream = BlockingStream::connect(socket)?;
    stream.set_read_timeout(Some(LONGEST_WAIT))?;
    stream.set_write_timeout(Some(LONGEST_WAIT))?;
    let mut line = serde_json::to_vec(attached)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    BufReader::new(stream).read_line(&mut String::new()).map(drop)
}

/// What is known of this node's attachments, and who waits for the rules of one.
#[derive(Default)]
pub struct Attachments {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By namespace/name.
    known: HashMap<String, Attached>,
    waiting: Vec<(Attached, oneshot::Sender<()>)>,
    /// Whether there are policies at all.
    is_enforcing: bool,
}

impl Attachments {
    /// Takes what the plugin has written down, from before this process.
    pub fn load(&self, leases: Vec<Lease>) {
        for lease in leases {
            if let Some(pod) = lease.pod {
                self.add(Attached { pod, addresses: lease.addresses });
            }
        }
    }

    fn add(&self, attached: Attached) {
        let mut state = self.state.lock();
        // An address belongs to who got it last.
        state.known.retain(|_, other| !other.addresses.iter().any(|address| attached.addresses.contains(address)));
        state.known.insert(attached.pod.key(), attached);
    }

    /// The addresses of a pod, if it is the very one.
    pub fn addresses(&self, key: &str, uid: &str) -> Option<Vec<IpAddr>> {
        let state = self.state.lock();
        let attached = state.known.get(key)?;
        let is_same = attached.pod.uid.is_empty() || attached.pod.uid == uid;
        is_same.then(|| attached.addresses.clone())
    }

    /// From now on, plugins wait for rules.
    pub fn enforce(&self) {
        self.state.lock().is_enforcing = true;
    }

    /// Lets those go on whose rules are in the kernel.
    pub fn confirm(&self, is_in_force: impl Fn(&Attached) -> bool) {
        let waiting = &mut self.state.lock().waiting;
        for index in (0..waiting.len()).rev() {
            if waiting[index].1.is_closed() {
                drop(waiting.swap_remove(index));
            } else if is_in_force(&waiting[index].0) {
                // Who no longer waits needs no word.
                let _ = waiting.swap_remove(index).1.send(());
            }
        }
    }

    /// Remembers an attachment; whoever must wait for its rules gets something to wait for.
    fn announced(&self, attached: Attached) -> Option<oneshot::Receiver<()>> {
        self.add(attached.clone());
        let mut state = self.state.lock();
        state.is_enforcing.then(|| {
            let (sender, receiver) = oneshot::channel();
            state.waiting.push((attached, sender));
            receiver
        })
    }
}

/// Hears plugins until dropped. `changed` is told of each pod.
pub async fn serve(data_directory: PathBuf, attachments: Arc<Attachments>, changed: impl Fn(String) + Clone) {
    let path = data_directory.join(SOCKET);
    let listener = match listen(&path) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "network policies of new pods wait for their status");
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
                    let answered = tokio::time::timeout(LONGEST_WAIT, answer(stream, &attachments, sender)).await;
                    if let Ok(Err(error)) = answered {
                        tracing::debug!(%error, "a plugin's word was not understood");
                    }
                });
                if let Ok(key) = receiver.await {
                    changed(key);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a plugin could not be heard");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The socket, for this machine's root alone.
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

async fn answer(stream: UnixStream, attachments: &Attachments, told: oneshot::Sender<String>) -> std::io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    tokio::io::BufReader::new(reading.take(LONGEST_MESSAGE)).read_line(&mut line).await?;
    let attached: Attached = serde_json::from_str(&line)?;
    let key = attached.pod.key();
    let rules = attachments.announced(attached);
    // The other end is there as long as this task is.
    let _ = told.send(key);
    if let Some(rules) = rules {
        let _ = rules.await;
    }
    writing.write_all(b"ok\n").await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(name: &str, uid: &str, address: &str) -> Attached {
        let pod = PodName { namespace: "n".into(), name: name.into(), uid: uid.into() };
        Attached { pod, addresses: vec![address.parse().unwrap()] }
    }

    #[test]
    fn an_address_is_its_last_pod_s() {
        let attachments = Attachments::default();
        assert!(attachments.announced(attached("a", "1", "10.0.0.1")).is_none(), "nothing is enforced");
        assert!(attachments.addresses("n/a", "1").is_some());
        assert!(attachments.addresses("n/a", "2").is_none(), "another pod of that name");
        attachments.announced(attached("b", "", "10.0.0.1"));
        assert!(attachments.addresses("n/a", "1").is_none() && attachments.addresses("n/b", "9").is_some());
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_rules_are_in_force() {
        let attachments = Attachments::default();
        attachments.enforce();
        let mut waits = attachments.announced(attached("a", "1", "10.0.0.1")).unwrap();
        attachments.confirm(|_| false);
        assert!(waits.try_recv().is_err());
        attachments.confirm(|one| one.pod.name == "a");
        waits.await.unwrap();
    }
}
