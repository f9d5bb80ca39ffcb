//! The pods behind a target, and pools of connections to them.
//!
//! A pod that is no longer ready gets no new requests; requests in flight are not interrupted.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_listen::host_of;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::payload::Payload;
use crate::pod_connection::PodConnection;
use crate::raw_connection::RawConnection;
use crate::routes::{Port, Target};
use crate::service_endpoints::{Found, ServiceEndpoints};
use crate::worker;

/// Maximum number of idle connections per pod.
const MAX_IDLE: usize = 256;
/// Maximum number of clients with a connection of their own per pod.
const MAX_CLIENTS: usize = 256;

/// Pods of one Service in all backends of its ports. Its author can create thousands of both: beyond that, each port has fewer pods.
const MAX_PODS_OF_SERVICE: usize = 50_000;

/// All targets that Ingresses reference.
pub struct Backends {
    /// By namespace and name of the Service, then by port: authors of Ingresses choose how many there are.
    by_service: Mutex<HashMap<(String, String), HashMap<Port, Arc<Backend>>>>,
    connect: Duration,
    allows_loopback: bool,
}

/// The pods of one target, used in turn.
pub struct Backend {
    pods: ArcSwap<Vec<Arc<Pod>>>,
    next: AtomicUsize,
}

pub struct Pod {
    pub address: SocketAddr,
    pub speaks_http2: bool,
    connect: Duration,
    /// One pool per worker: a connection stays on the thread whose runtime drives it.
    idle: Box<[Mutex<Idle>]>,
    /// Connections over HTTP/2, one for all requests of a client. One that does not read its responses blocks its connection,
    /// which must not be that of others.
    shared: tokio::sync::Mutex<HashMap<IpAddr, http2::SendRequest<Payload>>>,
}

/// Idle connections, the oldest first.
#[derive(Default)]
struct Idle {
    lines: VecDeque<PodConnection>,
    wires: VecDeque<RawConnection>,
}

/// A connection that is ready for one request.
pub enum Connection {
    One(PodConnection),
    Shared(http2::SendRequest<Payload>),
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the pod does not respond in time")]
    Timeout,
    #[error("the pod cannot be reached")]
    Connect(#[from] std::io::Error),
    #[error("the pod does not speak HTTP")]
    Handshake(#[from] hyper::Error),
}

impl Backends {
    pub fn new(connect: Duration, allows_loopback: bool) -> Self {
        Self { by_service: Mutex::default(), connect, allows_loopback }
    }

    /// The backend of a target; created without pods if it does not exist.
    pub fn of(&self, target: Target) -> Arc<Backend> {
        let mut by_service = self.by_service.lock();
        let by_port = by_service.entry((target.namespace.clone(), target.service.clone())).or_default();
        let new = || Arc::new(Backend { pods: ArcSwap::default(), next: AtomicUsize::new(0) });
        Arc::clone(by_port.entry(target.port.clone()).or_insert_with(new))
    }

    /// Removes targets that no routing table references any more.
    pub fn retain_used(&self) {
        self.by_service.lock().retain(|_, by_port| {
            by_port.retain(|_, backend| Arc::strong_count(backend) > 1);
            !by_port.is_empty()
        });
    }

    /// Updates the pods of all backends of a Service.
    pub fn set_service(&self, namespace: &str, name: &str, service: Option<&Service>, slices: &[Arc<EndpointSlice>]) {
        let by_service = self.by_service.lock();
        let Some(by_port) = by_service.get(&(namespace.to_owned(), name.to_owned())) else { return };
        let max = (MAX_PODS_OF_SERVICE / by_port.len().max(1)).max(1);
        let endpoints = service.map(|service| ServiceEndpoints::of(service, slices, max, self.allows_loopback));
        for (port, backend) in by_port {
            let found = endpoints.as_ref().map(|endpoints| endpoints.find(port)).unwrap_or_default();
            backend.set(&found, self.connect);
        }
    }
}

impl Backend {
    /// The next pod, round robin.
    pub fn next(&self) -> Option<Arc<Pod>> {
        let pods = self.pods.load();
        match pods.len() {
            0 => None,
            1 => pods.first().cloned(),
            many => pods.get(self.next.fetch_add(1, Ordering::Relaxed) % many).cloned(),
        }
    }

    /// A pod other than this one, if there is one.
    pub fn other_than(&self, pod: &Arc<Pod>) -> Option<Arc<Pod>> {
        let next = self.next()?;
        if next.address == pod.address { self.next() } else { Some(next) }
    }

    fn set(&self, found: &[Found], connect: Duration) {
        let old = self.pods.load();
        let known: HashMap<(SocketAddr, bool), &Arc<Pod>> =
            old.iter().map(|pod| ((pod.address, pod.speaks_http2), pod)).collect();
        let pod = |found: &Found| {
            let known = known.get(&(found.address, found.speaks_http2)).map(|pod| Arc::clone(pod));
            known.unwrap_or_else(|| {
                Arc::new(Pod {
                    address: found.address,
                    speaks_http2: found.speaks_http2,
                    connect,
                    idle: (0..worker::count()).map(|_| Mutex::default()).collect(),
                    shared: tokio::sync::Mutex::default(),
                })
            })
        };
        self.pods.store(Arc::new(found.iter().map(pod).collect()));
    }
}

impl Pod {
    /// An idle or new connection for the general proxy. `fresh` skips idle ones: the pod may have closed them all.
    pub async fn connection(&self, client: IpAddr, fresh: bool) -> Result<Connection, ConnectError> {
        if self.speaks_http2 {
            return self.shared_connection(host_of(client)).await.map(Connection::Shared);
        }
        while let Some(mut line) = (!fresh).then(|| self.own_idle().lock().lines.pop_back()).flatten() {
            if line.is_open() {
                return Ok(Connection::One(line));
            }
        }
        Ok(Connection::One(PodConnection::new(self.open().await?).await?))
    }

    /// Returns a connection to the pool.
    pub fn keep(&self, line: PodConnection) {
        let mut idle = self.own_idle().lock();
        // The most recent one is used first, so the front is idle for longest.
        if idle.lines.front_mut().is_some_and(|first| !first.is_open()) {
            idle.lines.pop_front();
        }
        if idle.lines.len() < MAX_IDLE {
            idle.lines.push_back(line);
        }
    }

    /// An idle or new connection for the fast path.
    pub async fn wire(&self, fresh: bool) -> Result<RawConnection, ConnectError> {
        while let Some(wire) = (!fresh).then(|| self.own_idle().lock().wires.pop_back()).flatten() {
            if wire.is_open() {
                return Ok(wire);
            }
        }
        Ok(RawConnection::new(self.open().await?))
    }

    pub fn keep_raw(&self, wire: RawConnection) {
        let mut idle = self.own_idle().lock();
        if idle.wires.front().is_some_and(|first| !first.is_open()) {
            idle.wires.pop_front();
        }
        if idle.wires.len() < MAX_IDLE {
            idle.wires.push_back(wire);
        }
    }

    fn own_idle(&self) -> &Mutex<Idle> {
        &self.idle[worker::current() % self.idle.len()]
    }

    async fn shared_connection(&self, client: IpAddr) -> Result<http2::SendRequest<Payload>, ConnectError> {
        let mut shared = self.shared.lock().await;
        if let Some(connection) = shared.get(&client).filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        shared.retain(|_, connection| !connection.is_closed());
        if let Some(any) = shared.keys().next().copied().filter(|_| shared.len() >= MAX_CLIENTS) {
            // It is closed when its requests have ended.
            shared.remove(&any);
        }
        let stream = self.open().await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await?;
        knarr_supervisor::spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection to a pod closed");
            }
        });
        shared.insert(client, sender.clone());
        Ok(sender)
    }

    async fn open(&self) -> Result<TcpStream, ConnectError> {
        let stream = tokio::time::timeout(self.connect, TcpStream::connect(self.address));
        let stream = stream.await.map_err(|_| ConnectError::Timeout)??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn services_of_any_number_are_updated_in_proportion() {
        let backends = Backends::new(Duration::from_secs(1), false);
        let target =
            |number: usize| Target { namespace: "n".into(), service: format!("s{number}"), port: Port::Number(80) };
        let held: Vec<Arc<Backend>> = (0..50_000).map(|number| backends.of(target(number))).collect();
        let started = std::time::Instant::now();
        for number in 0..held.len() {
            backends.set_service("n", &format!("s{number}"), None, &[]);
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert!(Arc::ptr_eq(&backends.of(target(7)), &held[7]));
        drop(held);
        backends.retain_used();
        assert!(backends.by_service.lock().is_empty());
    }

    #[test]
    fn many_ports_of_many_pods_take_little_memory() {
        const PORTS: u16 = 1000;
        let named = |port: u16| json!({"name": format!("p{port}"), "port": port});
        let ports: Vec<_> = (1..=PORTS).map(named).collect();
        let service = json!({"metadata": {"name": "s"}, "spec": {"ports": ports}});
        let service: Service = serde_json::from_value(service).unwrap();
        let endpoints: Vec<_> =
            (0..1000).map(|n| json!({"addresses": [format!("10.0.{}.{}", n / 250, n % 250 + 1)]})).collect();
        let slice = json!({"metadata": {}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
        let slice: Arc<EndpointSlice> = Arc::new(serde_json::from_value(slice).unwrap());
        let backends = Backends::new(Duration::from_secs(1), false);
        let target = |port: u16| Target { namespace: "n".into(), service: "s".into(), port: Port::Number(port) };
        let held: Vec<Arc<Backend>> = (1..=PORTS).map(|port| backends.of(target(port))).collect();
        backends.set_service("n", "s", Some(&service), &[slice]);
        let pods: usize = held.iter().map(|backend| backend.pods.load().len()).sum();
        assert!((held.len()..=MAX_PODS_OF_SERVICE).contains(&pods), "{pods}");
    }
}
