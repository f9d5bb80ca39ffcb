//! Fills the cluster with Deployments and Services, and waits until all their pods run.

use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;

use super::fleet::Fleet;
use super::{Arguments, manifests};
use crate::client::Client;

const IN_FLIGHT: usize = 16;
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A cluster in which no further pod starts for this long is stuck.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
struct Slices {
    items: Vec<Slice>,
}

#[derive(Deserialize)]
struct Slice {
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Deserialize)]
struct Endpoint {
    conditions: Conditions,
}

#[derive(Deserialize)]
struct Conditions {
    #[serde(default)]
    ready: bool,
}

/// Creates the workloads and waits until the nodes run all pods.
pub async fn fill(admin: &Client, fleet: &Fleet, arguments: &Arguments) -> anyhow::Result<()> {
    for name in manifests::namespaces(arguments.deployments()) {
        admin.create("/api/v1/namespaces", manifests::namespace(&name)).await?;
    }
    futures::stream::iter((0..arguments.deployments()).map(anyhow::Ok))
        .try_for_each_concurrent(IN_FLIGHT, |at| async move {
            let namespace = manifests::namespace_of(at);
            let services = format!("/api/v1/namespaces/{namespace}/services");
            admin.create(&services, manifests::service(at)).await?;
            let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
            admin.create(&deployments, manifests::deployment(at, arguments.replicas)).await
        })
        .await?;
    wait(|| async { Ok(fleet.running()) }, arguments.pods()).await
}

/// Waits until the EndpointSlices of all Services have all pods.
pub async fn wait_for_endpoints(admin: &Client, arguments: &Arguments) -> anyhow::Result<()> {
    wait(|| ready_endpoints(admin, arguments), arguments.pods()).await
}

async fn ready_endpoints(admin: &Client, arguments: &Arguments) -> anyhow::Result<usize> {
    let namespaces = manifests::namespaces(arguments.deployments());
    let counts: Vec<usize> = futures::stream::iter(namespaces)
        .then(async |namespace| {
            let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
            let slices: Slices = serde_json::from_slice(&admin.get(&path).await?)?;
            let endpoints = slices.items.iter().flat_map(|slice| slice.endpoints.iter().flatten());
            anyhow::Ok(endpoints.filter(|endpoint| endpoint.conditions.ready).count())
        })
        .try_collect()
        .await?;
    Ok(counts.into_iter().sum())
}

async fn wait<F>(count: impl Fn() -> F, expected: usize) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<usize>>,
{
    let (mut most, mut since) = (0, Instant::now());
    loop {
        let now = count().await?;
        if now == expected {
            return Ok(());
        }
        if now > most {
            (most, since) = (now, Instant::now());
        }
        ensure!(since.elapsed() < STALL_TIMEOUT, "{now} of {expected}, and no more for {STALL_TIMEOUT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
