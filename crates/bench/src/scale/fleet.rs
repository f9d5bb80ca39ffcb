//! The hollow nodes of a cluster, and what all of them share.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use tokio::task::JoinSet;

use super::node::Node;
use super::{NODES_PER_PROXY, manifests};
use crate::client::{Client, Endpoint};
use crate::latencies::Recorder;

/// Nodes that share a connection: each has a few streams, and a server may limit them to 100.
const NODES_PER_CONNECTION: usize = 30;
const REGISTRATIONS_IN_FLIGHT: usize = 32;

/// All nodes. They stop when this is dropped.
pub struct Fleet {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

/// What nodes count.
pub struct Shared {
    pub recorder: Arc<Recorder>,
    pub nodes: usize,
    running: AtomicUsize,
    addresses: AtomicU32,
    failures: Mutex<Failures>,
}

/// Requests of nodes that failed; nodes send them again.
#[derive(Clone, Default)]
pub struct Failures {
    pub count: usize,
    pub last: String,
}

impl Shared {
    pub fn add_running(&self, count: isize) {
        self.running.fetch_add(count as usize, Ordering::Relaxed);
    }

    /// A number for the IP address of a pod.
    pub fn next_address(&self) -> u32 {
        self.addresses.fetch_add(1, Ordering::Relaxed)
    }

    pub fn failed(&self, error: &anyhow::Error) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        *failures = Failures { count: failures.count + 1, last: format!("{error:#}") };
    }

    /// Measures a request.
    pub async fn measured<T>(
        &self,
        kind: &'static str,
        request: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        let result = request.await;
        self.recorder.add(kind, result.is_ok().then(|| started.elapsed()));
        result
    }
}

/// The lines of the token file for nodes.
pub fn token_lines(nodes: usize) -> String {
    let mut lines = String::new();
    for at in 0..nodes {
        let name = manifests::node_name(at);
        let _ = writeln!(lines, "{name},system:node:{name},{at},system:nodes");
    }
    lines
}

impl Fleet {
    /// Registers all nodes, then starts their heartbeats and the watches of their pods.
    pub async fn start(endpoint: &Endpoint, count: usize, recorder: &Arc<Recorder>) -> anyhow::Result<Fleet> {
        let shared = Arc::new(Shared {
            recorder: recorder.clone(),
            nodes: count,
            running: AtomicUsize::new(0),
            addresses: AtomicU32::new(1),
            failures: Mutex::default(),
        });
        let mut nodes = Vec::new();
        let mut connection = Client::connect(endpoint).await?;
        for at in 0..count {
            if at % NODES_PER_CONNECTION == 0 {
                connection = Client::connect(endpoint).await?;
            }
            nodes.push(Node::new(at, &connection, shared.clone()));
        }
        let registered: Vec<Node> = futures::stream::iter(nodes)
            .map(Node::register)
            .buffer_unordered(REGISTRATIONS_IN_FLIGHT)
            .try_collect()
            .await
            .context("a node cannot register")?;
        let mut tasks = JoinSet::new();
        for node in registered {
            tasks.spawn(node.run());
        }
        for _ in 0..count.div_ceil(NODES_PER_PROXY) {
            let client = Client::connect(endpoint).await?;
            for path in ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"] {
                let (client, shared) = (client.clone(), shared.clone());
                tasks.spawn(async move {
                    if let Err(error) = discard_events(&client, path).await {
                        shared.failed(&error);
                    }
                });
            }
        }
        Ok(Fleet { shared, _tasks: tasks })
    }

    /// How many pods the nodes run.
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::Relaxed)
    }

    pub fn failures(&self) -> Failures {
        self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn discard_events(client: &Client, path: &str) -> anyhow::Result<()> {
    loop {
        let mut events = client.open(&format!("{path}?watch=1&timeoutSeconds=3600")).await?;
        while let Some(frame) = events.frame().await {
            frame?;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
