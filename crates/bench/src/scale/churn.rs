//! Churn, and what clients notice: Deployments are scaled and pods deleted, while requests of each kind and the start of
//! pods are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::{Arguments, manifests};
use crate::client::{Client, Endpoint};
use crate::latencies::Recorder;

const REQUEST_INTERVAL: Duration = Duration::from_millis(50);
const NAMESPACE_LIST_INTERVAL: Duration = Duration::from_millis(500);
const CLUSTER_LIST_INTERVAL: Duration = Duration::from_secs(10);
const POD_INTERVAL: Duration = Duration::from_millis(500);
/// A pod that does not run by then has failed to start.
const POD_TIMEOUT: Duration = Duration::from_secs(60);
const SCALED_BY: usize = 5;

/// Names of pods are not used again: a deleted one may still exist.
static NEXT_POD: AtomicUsize = AtomicUsize::new(0);

/// Runs for some time.
pub async fn run(
    endpoint: &Endpoint,
    arguments: &Arguments,
    time: Duration,
    recorder: &Arc<Recorder>,
) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    // New connections: the server closes those that were idle for long.
    let connect = || Client::connect(endpoint);
    let (churning, single, lists, pods) = (connect().await?, connect().await?, connect().await?, connect().await?);
    futures::try_join!(
        churn(&churning, arguments, end),
        single_objects(&single, arguments, end, recorder),
        lists_of_namespaces(&lists, arguments, end, recorder),
        lists_of_the_cluster(&lists, end, recorder),
        start_pods(&pods, end, recorder),
    )?;
    Ok(())
}

/// A sequence of numbers below a limit that visits all of them in no apparent order.
fn scattered(count: usize, limit: usize) -> usize {
    // A prime that divides no realistic limit.
    count.wrapping_mul(7_368_787) % limit
}

/// Scales Deployments up and back, and deletes pods of others: half of the churn each.
async fn churn(admin: &Client, arguments: &Arguments, end: Instant) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let deployments = arguments.deployments();
    let scaled = (arguments.churn / 2).div_ceil(SCALED_BY);
    let (mut at, mut grown) = (0, Vec::new());
    while Instant::now() < end {
        ticks.tick().await;
        for deployment in std::mem::take(&mut grown) {
            scale(admin, deployment, arguments.replicas).await?;
        }
        for _ in 0..scaled {
            at += 1;
            let deployment = scattered(at, deployments);
            scale(admin, deployment, arguments.replicas + SCALED_BY).await?;
            grown.push(deployment);
        }
        for _ in 0..arguments.churn / 2 {
            at += 1;
            delete_a_pod(admin, scattered(at, deployments)).await?;
        }
    }
    for deployment in grown {
        scale(admin, deployment, arguments.replicas).await?;
    }
    Ok(())
}

async fn scale(admin: &Client, deployment: usize, replicas: usize) -> anyhow::Result<()> {
    let (namespace, name) = (manifests::namespace_of(deployment), manifests::deployment_name(deployment));
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    admin.patch(&path, Bytes::from(json!({"spec": {"replicas": replicas}}).to_string())).await
}

async fn delete_a_pod(admin: &Client, deployment: usize) -> anyhow::Result<()> {
    let name = manifests::deployment_name(deployment);
    let pods = format!("/api/v1/namespaces/{}/pods", manifests::namespace_of(deployment));
    let list: Value = serde_json::from_slice(&admin.get(&format!("{pods}?labelSelector=app%3D{name}")).await?)?;
    match list["items"][0]["metadata"]["name"].as_str() {
        Some(pod) => admin.delete(&format!("{pods}/{pod}"), Bytes::new()).await,
        None => Ok(()),
    }
}

async fn measured<T>(
    recorder: &Recorder,
    kind: &'static str,
    request: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    let result = request.await;
    recorder.add(kind, result.is_ok().then(|| started.elapsed()));
    result
}

/// Creates, reads, changes and deletes a config map, and reads Deployments.
async fn single_objects(
    client: &Client,
    arguments: &Arguments,
    end: Instant,
    recorder: &Recorder,
) -> anyhow::Result<()> {
    let maps = format!("/api/v1/namespaces/{}/configmaps", manifests::PROBES);
    for at in 0.. {
        if Instant::now() >= end {
            break;
        }
        let name = format!("map-{at}");
        let path = format!("{maps}/{name}");
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}});
        measured(recorder, "create", client.create(&maps, Bytes::from(map.to_string()))).await?;
        let deployment = scattered(at, arguments.deployments());
        let (namespace, name) = (manifests::namespace_of(deployment), manifests::deployment_name(deployment));
        measured(recorder, "get", client.get(&format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}")))
            .await?;
        measured(recorder, "patch", client.patch(&path, Bytes::from_static(br#"{"data":{"a":"c"}}"#))).await?;
        measured(recorder, "delete", client.delete(&path, Bytes::new())).await?;
        tokio::time::sleep(REQUEST_INTERVAL).await;
    }
    Ok(())
}

async fn lists_of_namespaces(
    client: &Client,
    arguments: &Arguments,
    end: Instant,
    recorder: &Recorder,
) -> anyhow::Result<()> {
    for at in 0.. {
        if Instant::now() >= end {
            break;
        }
        let pods =
            format!("/api/v1/namespaces/{}/pods", manifests::namespace_of(scattered(at, arguments.deployments())));
        measured(recorder, "list of a namespace's pods", client.get(&pods)).await?;
        tokio::time::sleep(NAMESPACE_LIST_INTERVAL).await;
    }
    Ok(())
}

async fn lists_of_the_cluster(client: &Client, end: Instant, recorder: &Recorder) -> anyhow::Result<()> {
    while Instant::now() < end {
        measured(recorder, "list of all pods", client.get("/api/v1/pods")).await?;
        tokio::time::sleep(CLUSTER_LIST_INTERVAL).await;
    }
    Ok(())
}

/// Creates single pods, and measures when they are bound and when they run.
pub async fn start_pods(client: &Client, end: Instant, recorder: &Recorder) -> anyhow::Result<()> {
    let path = format!("/api/v1/namespaces/{}/pods", manifests::PROBES);
    let mut events =
        Events { body: client.open(&format!("{path}?watch=1&timeoutSeconds=3600")).await?, buffer: BytesMut::new() };
    while Instant::now() < end {
        let name = format!("probe-{}", NEXT_POD.fetch_add(1, Ordering::Relaxed));
        let started = Instant::now();
        client.create(&path, manifests::probe_pod(&name)).await?;
        let running = async {
            let mut bound = false;
            loop {
                let event = events.next().await?;
                let pod = &event["object"];
                if pod["metadata"]["name"] != name.as_str() {
                    continue;
                }
                if !bound && pod["spec"]["nodeName"].is_string() {
                    bound = true;
                    recorder.add("pod creation to bound", Some(started.elapsed()));
                }
                if pod["status"]["phase"] == "Running" {
                    return anyhow::Ok(());
                }
            }
        };
        let result = tokio::time::timeout(POD_TIMEOUT, running).await;
        recorder.add("pod creation to running", matches!(result, Ok(Ok(()))).then(|| started.elapsed()));
        client.delete(&format!("{path}/{name}"), Bytes::new()).await?;
        tokio::time::sleep(POD_INTERVAL).await;
    }
    Ok(())
}

struct Events {
    body: hyper::body::Incoming,
    buffer: BytesMut,
}

impl Events {
    async fn next(&mut self) -> anyhow::Result<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Ok(serde_json::from_slice(&self.buffer.split_to(end + 1))?);
            }
            let frame = self.body.frame().await.context("the watch of pods ended")??;
            if let Some(data) = frame.data_ref() {
                self.buffer.extend_from_slice(data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_numbers_visit_everything() {
        for limit in [1, 7, 200, 10_000] {
            let visited: std::collections::HashSet<usize> = (0..limit).map(|count| scattered(count, limit)).collect();
            assert_eq!(visited.len(), limit);
        }
    }
}
