//! One hollow node: what a kubelet sends to the API server, without containers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use super::fleet::Shared;
use super::manifests;
use crate::client::Client;

/// The intervals of a kubelet with default settings.
const LEASE_INTERVAL: Duration = Duration::from_secs(10);
const STATUS_INTERVAL: Duration = Duration::from_secs(300);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub struct Node {
    at: usize,
    name: String,
    client: Client,
    shared: Arc<Shared>,
}

#[derive(Deserialize)]
struct PodEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Pod,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
struct Status {
    #[serde(default)]
    phase: String,
}

impl Node {
    pub fn new(at: usize, connection: &Client, shared: Arc<Shared>) -> Node {
        let name = manifests::node_name(at);
        Node { at, client: connection.with_token(&name), name, shared }
    }

    /// Creates the node's objects, unless they exist.
    pub async fn register(self) -> anyhow::Result<Node> {
        let now = now();
        let lease = manifests::lease(&self.name, &now);
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        for (path, object) in
            [("/api/v1/nodes", manifests::node(self.at, &now)), (leases, Bytes::from(lease.to_string()))]
        {
            self.client.done(Method::POST, path, "application/json", object).await?;
        }
        Ok(self)
    }

    /// Runs until the node is dropped.
    pub async fn run(self) {
        futures::join!(self.renew_lease(), self.report_status(), self.run_pods(), self.watch_itself());
    }

    /// The time of the first heartbeat: spread over the interval, as nodes start at different times.
    fn first(&self, interval: Duration) -> Instant {
        Instant::now() + interval.mul_f64(self.at as f64 / self.shared.nodes as f64)
    }

    async fn renew_lease(&self) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", self.name);
        let mut lease: Option<Value> = None;
        let mut ticks = tokio::time::interval_at(self.first(LEASE_INTERVAL), LEASE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let renewal = async {
                let mut current = match lease.take() {
                    Some(lease) => lease,
                    None => serde_json::from_slice(&self.client.get(&path).await?)?,
                };
                current["spec"]["renewTime"] = json!(now());
                let renewed = self.client.replace(&path, Bytes::from(current.to_string())).await?;
                anyhow::Ok(serde_json::from_slice(&renewed)?)
            };
            match self.shared.measured("lease renewal", renewal).await {
                Ok(renewed) => lease = Some(renewed),
                Err(error) => self.shared.failed(&error),
            }
        }
    }

    async fn report_status(&self) {
        let path = format!("/api/v1/nodes/{}/status", self.name);
        let mut ticks = tokio::time::interval_at(self.first(STATUS_INTERVAL), STATUS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let patch = self.client.patch(&path, manifests::node_status(&now()));
            if let Err(error) = self.shared.measured("node status", patch).await {
                self.shared.failed(&error);
            }
        }
    }

    /// A kubelet watches its own Node.
    async fn watch_itself(&self) {
        let path = format!("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{}", self.name);
        loop {
            if let Ok(mut events) = self.client.open(&path).await {
                while let Some(Ok(_)) = events.frame().await {}
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Watches the node's pods, reports new ones as running and deletes those that are to stop.
    async fn run_pods(&self) {
        let mut running = HashSet::new();
        loop {
            if let Err(error) = self.watch_pods(&mut running).await {
                self.shared.failed(&error);
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn watch_pods(&self, running: &mut HashSet<String>) -> anyhow::Result<()> {
        let path = format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{}&watch=1&sendInitialEvents=true&allowWatchBookmarks=true\
             &resourceVersionMatch=NotOlderThan",
            self.name
        );
        let mut body = self.client.open(&path).await?;
        let mut buffer = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame?.data_ref() {
                buffer.extend_from_slice(data);
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                let event: PodEvent = serde_json::from_slice(&line)
                    .with_context(|| format!("the event {}", String::from_utf8_lossy(&line)))?;
                self.handle(event, running).await?;
            }
        }
        Ok(())
    }

    async fn handle(&self, event: PodEvent, running: &mut HashSet<String>) -> anyhow::Result<()> {
        let Pod { metadata, status } = event.object;
        let path = format!("/api/v1/namespaces/{}/pods/{}", metadata.namespace, metadata.name);
        match event.kind.as_str() {
            "DELETED" if running.remove(&metadata.uid) => self.shared.add_running(-1),
            "DELETED" => {}
            "ADDED" | "MODIFIED" if metadata.deletion_timestamp.is_some() => {
                let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": metadata.uid}});
                let deletion = self.client.delete(&path, Bytes::from(options.to_string()));
                self.shared.measured("pod deletion", deletion).await?;
            }
            "ADDED" | "MODIFIED" => {
                if status.phase == "Pending" && !running.contains(&metadata.uid) {
                    let (path, status) =
                        (format!("{path}/status"), manifests::running(self.shared.next_address(), &now()));
                    let patch = self.client.patch(&path, status);
                    self.shared.measured("pod status", patch).await?;
                }
                if running.insert(metadata.uid) {
                    self.shared.add_running(1);
                }
            }
            "ERROR" => anyhow::bail!("the watch of the pods of {} failed", self.name),
            _ => {}
        }
        Ok(())
    }
}

impl Client {
    /// Merges a patch into an object.
    pub async fn patch(&self, path: &str, patch: Bytes) -> anyhow::Result<()> {
        self.done(Method::PATCH, path, "application/strategic-merge-patch+json", patch).await
    }

    /// Deletes an object.
    pub async fn delete(&self, path: &str, options: Bytes) -> anyhow::Result<()> {
        self.done(Method::DELETE, path, "application/json", options).await
    }

    async fn done(&self, method: Method, path: &str, content: &'static str, body: Bytes) -> anyhow::Result<()> {
        let headers = [("accept", "application/json"), ("content-type", content)];
        let response = self.send(method.clone(), path, &headers, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        // What is deleted already need not be changed, and what exists need not be created.
        if !status.is_success() && status != 404 && status != 409 {
            anyhow::bail!("{method} {path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }
}

/// The time as Kubernetes writes it in Leases.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
