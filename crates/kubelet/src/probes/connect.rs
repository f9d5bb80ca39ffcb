//! Connects to the host that a probe or a hook names.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Names that are looked up at a time, for all pods. A lookup blocks a thread until the resolver gives up, however soon the probe
/// does, and all components of the process share these threads: a pod's author must not have them all.
const MAX_LOOKUPS: usize = 8;
/// Those for one namespace: names whose servers hang make no probes of others wait.
const MAX_LOOKUPS_OF_NAMESPACE: usize = 2;

static LOOKUPS: LazyLock<Lookups> = LazyLock::new(Lookups::default);

/// Connects for a pod of this namespace.
pub async fn connect(namespace: &str, host: &str, port: u16) -> io::Result<TcpStream> {
    let find = move |name: String| (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    match host.parse::<IpAddr>() {
        Ok(address) => TcpStream::connect((address, port)).await,
        Err(_) => TcpStream::connect(LOOKUPS.find(namespace, host, find).await?.as_slice()).await,
    }
}

/// The room for lookups: as a whole, and of each namespace that uses it.
struct Lookups {
    all: Arc<Semaphore>,
    of_namespaces: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Default for Lookups {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_LOOKUPS)), of_namespaces: Mutex::default() }
    }
}

impl Lookups {
    /// Counts until `find` has returned, also if nobody waits for it any more.
    async fn find(
        &self,
        namespace: &str,
        name: &str,
        find: impl FnOnce(String) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        // In this order: who waits for the own namespace keeps no room from others.
        let own = self.of_namespace(namespace).acquire_owned().await.map_err(io::Error::other)?;
        let permit = self.all.clone().acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_string();
        let found = tokio::task::spawn_blocking(move || {
            let _permits = (own, permit);
            find(name)
        });
        found.await.map_err(io::Error::other)?
    }

    /// The room of a namespace, which is there while somebody waits for it or uses it.
    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut known = self.of_namespaces.lock();
        if let Some(room) = known.get(namespace).and_then(Weak::upgrade) {
            return room;
        }
        known.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Semaphore::new(MAX_LOOKUPS_OF_NAMESPACE));
        known.insert(namespace.to_owned(), Arc::downgrade(&room));
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// A resolver that never responds must not have all threads of the process, nor those of other namespaces.
    #[tokio::test]
    async fn lookups_without_end_hold_few_threads() {
        for (namespaces, expected) in [(1, MAX_LOOKUPS_OF_NAMESPACE), (80, MAX_LOOKUPS)] {
            let (lookups, started) = (Lookups::default(), Arc::new(AtomicUsize::new(0)));
            let (release, gate) = std::sync::mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            let probe = |number: usize| {
                let (started, gate, lookups) = (started.clone(), gate.clone(), &lookups);
                let find = move |_: String| {
                    started.fetch_add(1, Ordering::SeqCst);
                    // An error means that the test is over.
                    let _ = gate.lock().recv();
                    Err(io::ErrorKind::NotFound.into())
                };
                let namespace = format!("n{}", number % namespaces);
                let lookup = async move { lookups.find(&namespace, "name.example", find).await };
                tokio::time::timeout(Duration::from_millis(100), lookup)
            };
            let ended = futures::future::join_all((0..10 * MAX_LOOKUPS).map(probe)).await;
            assert!(ended.iter().all(Result::is_err), "all probes timed out");
            let left = lookups.all.available_permits();
            assert_eq!(left, MAX_LOOKUPS - expected, "lookups that nobody waits for still count");
            assert!(started.load(Ordering::SeqCst) <= expected);
            drop(release);
            while lookups.all.available_permits() < MAX_LOOKUPS {
                tokio::task::yield_now().await;
            }
            lookups.of_namespace("another");
            assert_eq!(lookups.of_namespaces.lock().len(), 1, "unused rooms are removed");
        }
    }

    /// Through the room that the whole process shares.
    #[tokio::test]
    async fn names_that_hang_delay_only_their_namespace() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connects = async |namespace: &str, host: &str| {
            let connected = tokio::time::timeout(Duration::from_millis(500), connect(namespace, host, port)).await;
            connected.is_ok_and(|connected| connected.is_ok())
        };
        let room = LOOKUPS.of_namespace("hanging");
        let hanging = room.acquire_many(MAX_LOOKUPS_OF_NAMESPACE as u32).await.expect("room");
        assert!(!connects("hanging", "localhost").await, "all lookups of the namespace hang");
        assert!(connects("hanging", "127.0.0.1").await, "an address needs no lookup");
        assert!(connects("another", "localhost").await);
        drop(hanging);
        assert!(connects("hanging", "localhost").await);
        let all = LOOKUPS.all.acquire_many(MAX_LOOKUPS as u32).await.expect("room");
        assert!(!connects("another", "localhost").await, "all lookups hang");
        drop(all);
        assert!(connects("another", "localhost").await);
    }

    #[tokio::test]
    async fn names_and_addresses_are_connected_to() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        for host in ["127.0.0.1", "localhost"] {
            assert!(connect("default", host, port).await.is_ok(), "{host}");
        }
    }
}
