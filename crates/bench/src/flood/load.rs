//! The flood: lists, writes and watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::task::JoinSet;

use super::{Arguments, FLOODER, Stop, WRITER};
use crate::client::{Client, Endpoint};
use crate::manifests;

/// How many config maps the writes change in turn.
pub const WRITTEN: usize = 500;
const WRITERS: usize = 64;
const LISTS_PER_CONNECTION: usize = 10;
/// Below the limit of streams per connection of Kubernetes' server too, which is 100.
const WATCHES_PER_CONNECTION: usize = 90;
/// A slow reader takes one frame in this time.
const SLOW_INTERVAL: Duration = Duration::from_millis(200);
/// A client that is refused waits at most this long, whatever the server says.
const MAX_RETRY: Duration = Duration::from_secs(1);

type Headers = &'static [(&'static str, &'static str)];

const PLAIN: Headers = &[("accept", "application/json")];
const FORMATS: [Headers; 5] = [
    PLAIN,
    &[("accept", "application/json"), ("accept-encoding", "gzip")],
    &[("accept", "application/vnd.kubernetes.protobuf")],
    &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
    &[("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"), ("accept-encoding", "gzip")],
];

/// The name of a config map that is written.
pub fn written_name(at: usize) -> String {
    format!("written-{at}")
}

#[derive(Default)]
struct Counts {
    lists: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    writes: AtomicU64,
    failed_writes: AtomicU64,
    cut_watches: AtomicU64,
}

/// A running flood.
pub struct Flood {
    counts: Arc<Counts>,
    stop: Stop,
    tasks: JoinSet<()>,
    started: Instant,
}

impl Flood {
    /// Opens the watches and starts everything.
    pub async fn start(endpoint: &Endpoint, arguments: &Arguments) -> anyhow::Result<Flood> {
        let mut flood =
            Flood { counts: Arc::default(), stop: Stop::default(), tasks: JoinSet::new(), started: Instant::now() };
        let flooder = endpoint.with_token(FLOODER);
        flood.open_watches(&flooder, arguments.watches).await?;
        flood.started = Instant::now();
        flood.start_writes(endpoint, arguments.writes).await?;
        flood.start_lists(&flooder, arguments).await?;
        Ok(flood)
    }

    async fn open_watches(&mut self, endpoint: &Endpoint, count: usize) -> anyhow::Result<()> {
        let path = manifests::accounts();
        let client = Client::connect(endpoint).await?;
        let list: Value = serde_json::from_slice(&client.get(&path).await?)?;
        let revision = list["metadata"]["resourceVersion"].as_str().context("a list without a resource version")?;
        let watch = format!("{path}?watch=1&resourceVersion={revision}&timeoutSeconds=3600");
        for first in (0..count).step_by(WATCHES_PER_CONNECTION) {
            let client = Client::connect(endpoint).await?;
            for _ in first..count.min(first + WATCHES_PER_CONNECTION) {
                let mut body = client.open(&watch).await?;
                let (counts, stop) = (self.counts.clone(), self.stop.clone());
                self.tasks.spawn(async move {
                    while let Some(Ok(_)) = body.frame().await {}
                    if !stop.is_set() {
                        counts.cut_watches.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
        Ok(())
    }

    async fn start_writes(&mut self, endpoint: &Endpoint, rate: u32) -> anyhow::Result<()> {
        let client = Client::connect(&endpoint.with_token(WRITER)).await?;
        for writer in 0..if rate == 0 { 0 } else { WRITERS } {
            let (client, counts, stop) = (client.clone(), self.counts.clone(), self.stop.clone());
            let mut ticks = tokio::time::interval(Duration::from_secs(1) * WRITERS as u32 / rate);
            self.tasks.spawn(async move {
                let mut at = writer;
                while !stop.is_set() {
                    ticks.tick().await;
                    at = (at + WRITERS) % WRITTEN;
                    let written = write(&client, at, counts.writes.load(Ordering::Relaxed)).await;
                    let counter = if matches!(written, Ok(true)) { &counts.writes } else { &counts.failed_writes };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Ok(())
    }

    async fn start_lists(&mut self, endpoint: &Endpoint, arguments: &Arguments) -> anyhow::Result<()> {
        let slow = arguments.slow.min(arguments.lists);
        let mut client = Client::connect(endpoint).await?;
        for at in 0..arguments.lists {
            let is_slow = at < slow;
            // A slow reader would block others on its connection.
            if is_slow || at % LISTS_PER_CONNECTION == 0 {
                client = Client::connect(endpoint).await?;
            }
            let headers = if arguments.plain { PLAIN } else { FORMATS[at % FORMATS.len()] };
            let (client, counts, stop) = (client.clone(), self.counts.clone(), self.stop.clone());
            self.tasks.spawn(async move {
                while !stop.is_set() {
                    list(&client, headers, is_slow, &counts, &stop).await;
                }
            });
        }
        Ok(())
    }

    /// Ends the flood and says what it did.
    pub async fn stop(mut self) -> String {
        self.stop.set();
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        let seconds = self.started.elapsed().as_secs_f64();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { lists, refused, failed, bytes, writes, failed_writes, cut_watches } = &*self.counts;
        format!(
            "flood   {:.1} lists/s, {:.0} MB/s, {} refused, {} failed; {:.0} writes/s, {} failed; {} watches cut off",
            read(lists) as f64 / seconds,
            read(bytes) as f64 / 1e6 / seconds,
            read(refused),
            read(failed),
            read(writes) as f64 / seconds,
            read(failed_writes),
            read(cut_watches),
        )
    }
}

async fn write(client: &Client, at: usize, number: u64) -> anyhow::Result<bool> {
    let path = format!("{}/{}", manifests::config_maps(), written_name(at));
    let patch = Bytes::from(format!("{{\"data\":{{\"number\":\"{number}\"}}}}"));
    let headers = [("accept", "application/json"), ("content-type", "application/merge-patch+json")];
    let response = client.send(Method::PATCH, &path, &headers, patch).await?;
    let is_written = response.status().is_success();
    response.into_body().collect().await?;
    Ok(is_written)
}

async fn list(client: &Client, headers: Headers, is_slow: bool, counts: &Counts, stop: &Stop) {
    let Ok(response) = client.send(Method::GET, &manifests::pods(), headers, Bytes::new()).await else {
        counts.failed.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(MAX_RETRY).await;
        return;
    };
    if response.status() == 429 {
        counts.refused.fetch_add(1, Ordering::Relaxed);
        let seconds = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(1)).min(MAX_RETRY)).await;
        return;
    }
    let is_success = response.status().is_success();
    let whole = read(response.into_body(), is_slow, counts, stop).await;
    let counter = if is_success && whole { &counts.lists } else { &counts.failed };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Reads a body; whether it came to its end.
async fn read(mut body: Incoming, is_slow: bool, counts: &Counts, stop: &Stop) -> bool {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        counts.bytes.fetch_add(frame.data_ref().map_or(0, |data| data.len() as u64), Ordering::Relaxed);
        if stop.is_set() {
            return true;
        }
        if is_slow {
            tokio::time::sleep(SLOW_INTERVAL).await;
        }
    }
    true
}
