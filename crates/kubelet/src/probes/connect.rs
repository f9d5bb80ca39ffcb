//! Connects to the host that a probe or a hook names.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock};

use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Names that are looked up at a time, for all pods. A lookup blocks a thread until the resolver gives up, however soon the probe
/// does, and all components of the process share these threads: a pod's author must not have them all.
const MAX_LOOKUPS: usize = 8;

static LOOKUPS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MAX_LOOKUPS)));

pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let find = move |name: String| (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
    match host.parse::<IpAddr>() {
        Ok(address) => TcpStream::connect((address, port)).await,
        Err(_) => TcpStream::connect(lookup(LOOKUPS.clone(), host, find).await?.as_slice()).await,
    }
}

/// Counts until `find` has returned, also if nobody waits for it any more.
async fn lookup(
    room: Arc<Semaphore>,
    name: &str,
    find: impl FnOnce(String) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let permit = room.acquire_owned().await.map_err(io::Error::other)?;
    let name = name.to_string();
    let found = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        find(name)
    });
    found.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// A resolver that never responds must not have all threads of the process.
    #[tokio::test]
    async fn lookups_without_end_hold_few_threads() {
        let (room, started) = (Arc::new(Semaphore::new(MAX_LOOKUPS)), Arc::new(AtomicUsize::new(0)));
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(parking_lot::Mutex::new(gate));
        let probe = |_| {
            let (started, gate) = (started.clone(), gate.clone());
            let find = move |_: String| {
                started.fetch_add(1, Ordering::SeqCst);
                // An error means that the test is over.
                let _ = gate.lock().recv();
                Err(io::ErrorKind::NotFound.into())
            };
            tokio::time::timeout(Duration::from_millis(100), lookup(room.clone(), "name.example", find))
        };
        let ended = futures::future::join_all((0..10 * MAX_LOOKUPS).map(probe)).await;
        assert!(ended.iter().all(Result::is_err), "all probes timed out");
        assert_eq!(room.available_permits(), 0, "lookups that nobody waits for still count");
        assert!(started.load(Ordering::SeqCst) <= MAX_LOOKUPS);
        drop(release);
        while room.available_permits() < MAX_LOOKUPS {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn names_and_addresses_are_connected_to() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        for host in ["127.0.0.1", "localhost"] {
            assert!(connect(host, port).await.is_ok(), "{host}");
        }
    }
}
