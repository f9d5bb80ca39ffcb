//! What others notice: the latencies of lease renewals, of an administrator's reads, and of the start of pods.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value, json};

use super::NODE_TOKENS;
use crate::client::{Client, Endpoint};
use crate::latencies::Latencies;
use crate::{manifests, scale};

/// The namespace of node leases.
pub const NAMESPACE: &str = "kube-node-lease";
/// How often each node renews its lease: more often than a kubelet, for more samples.
const LEASE_INTERVAL: Duration = Duration::from_millis(500);
const GET_INTERVAL: Duration = Duration::from_millis(50);
/// A request that takes longer has failed: a kubelet gives up then.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The path of the leases of nodes.
pub fn leases() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")
}

/// Probes for some time, on a thread of its own, and returns the latencies by the kind of request.
pub async fn run(
    endpoint: &Endpoint,
    time: Duration,
    starts_pods: bool,
) -> anyhow::Result<Vec<(&'static str, Latencies)>> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let endpoint = endpoint.clone();
    std::thread::spawn(move || {
        let probed = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(anyhow::Error::from)
            .and_then(|runtime| runtime.block_on(probe(&endpoint, time, starts_pods)));
        // The receiver waits as long as this thread runs.
        let _ = sender.send(probed);
    });
    receiver.await.context("the probes failed")?
}

async fn probe(
    endpoint: &Endpoint,
    time: Duration,
    starts_pods: bool,
) -> anyhow::Result<Vec<(&'static str, Latencies)>> {
    let end = Instant::now() + time;
    let nodes = NODE_TOKENS.iter().map(|node| renew(endpoint, node, end));
    let pods = async { if starts_pods { scale::measure_pod_starts(endpoint, end).await } else { Ok(Vec::new()) } };
    let (renewals, gets, pods) = futures::join!(futures::future::join_all(nodes), read(endpoint, end), pods);
    let mut leases = Latencies::default();
    for renewed in renewals {
        leases.merge(renewed?);
    }
    let mut all = vec![("lease renewal", leases), ("administrator's get", gets?)];
    all.extend(pods?);
    Ok(all)
}

async fn renew(endpoint: &Endpoint, node: &'static str, end: Instant) -> anyhow::Result<Latencies> {
    let client = Client::connect(&endpoint.with_token(node)).await?;
    let path = format!("{}/{node}", leases());
    let mut latencies = Latencies::default();
    let mut lease: Option<Value> = None;
    let mut renewals = 0u32;
    while Instant::now() < end {
        let started = Instant::now();
        let renewal = async {
            let mut current = match lease.take() {
                Some(lease) => lease,
                None => serde_json::from_slice(&client.get(&path).await?)?,
            };
            renewals += 1;
            current["spec"]["renewTime"] = json!(format!("2026-01-02T03:04:05.{renewals:06}Z"));
            let renewed = client.replace(&path, Bytes::from(current.to_string())).await?;
            anyhow::Ok(serde_json::from_slice::<Value>(&renewed)?)
        };
        match tokio::time::timeout(TIMEOUT, renewal).await {
            Ok(Ok(renewed)) => {
                lease = Some(renewed);
                latencies.add(Some(started.elapsed()));
            }
            _ => latencies.add(None),
        }
        tokio::time::sleep(LEASE_INTERVAL).await;
    }
    Ok(latencies)
}

async fn read(endpoint: &Endpoint, end: Instant) -> anyhow::Result<Latencies> {
    let client = Client::connect(endpoint).await?;
    let path = format!("{}/pod-0", manifests::pods());
    let mut latencies = Latencies::default();
    while Instant::now() < end {
        let started = Instant::now();
        let got = tokio::time::timeout(TIMEOUT, client.get(&path)).await;
        latencies.add(matches!(got, Ok(Ok(_))).then(|| started.elapsed()));
        tokio::time::sleep(GET_INTERVAL).await;
    }
    Ok(latencies)
}
