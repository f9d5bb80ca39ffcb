//! The workloads, one function each.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::client::{Client, Endpoint};
use crate::manifests;

/// The throughput and latency of many small requests.
pub struct Rate {
    per_second: f64,
    /// The median latency.
    median: Duration,
}

impl fmt::Display for Rate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.0}/s, p50 {:.1} ms", self.per_second, self.median.as_secs_f64() * 1e3)
    }
}

/// The duration and size of a list.
pub struct ListResult {
    /// The median duration.
    pub milliseconds: f64,
    /// The size of the response.
    pub bytes: usize,
}

/// Creates pods.
pub async fn create_pods(client: &Client, count: usize, in_flight: usize) -> anyhow::Result<Rate> {
    let path = manifests::pods();
    many(count, in_flight, |index| client.create(&path, manifests::pod(&format!("pod-{index}")))).await
}

/// Reads one pod repeatedly.
pub async fn get_pod(client: &Client, count: usize, in_flight: usize) -> anyhow::Result<Rate> {
    let path = format!("{}/pod-0", manifests::pods());
    many(count, in_flight, |_| async { client.get(&path).await.map(drop) }).await
}

/// Lists all pods repeatedly, one list after the other.
pub async fn list_pods(client: &Client, expected: usize) -> anyhow::Result<ListResult> {
    const REPETITIONS: usize = 10;
    let (mut durations, mut bytes) = (Vec::new(), 0);
    for repetition in 0..REPETITIONS {
        let started = Instant::now();
        let list = client.get(&manifests::pods()).await?;
        durations.push(started.elapsed());
        bytes = list.len();
        if repetition == 0 {
            let list: Value = serde_json::from_slice(&list)?;
            let found = list["items"].as_array().map_or(0, Vec::len);
            ensure!(found == expected, "the list has {found} pods, not {expected}");
        }
    }
    Ok(ListResult { milliseconds: median(&mut durations).as_secs_f64() * 1e3, bytes })
}

/// Opens watches, creates objects, and returns the deliveries per second until every watcher has received all of them.
pub async fn watch(server: &Endpoint, client: &Client, watchers: usize, events: usize) -> anyhow::Result<f64> {
    /// Well below the server's limit of streams per connection.
    const WATCHES_PER_CONNECTION: usize = 50;
    let path = manifests::config_maps();
    let list: Value = serde_json::from_slice(&client.get(&path).await?)?;
    let revision = list["metadata"]["resourceVersion"].as_str().context("a list without a resource version")?;
    let watch = format!("{path}?watch=1&resourceVersion={revision}");
    let mut watches = JoinSet::new();
    for first in (0..watchers).step_by(WATCHES_PER_CONNECTION) {
        let connection = Client::connect(server).await?;
        for _ in first..watchers.min(first + WATCHES_PER_CONNECTION) {
            let mut body = connection.open(&watch).await?;
            watches.spawn(async move {
                let mut received = 0;
                while received < events {
                    let frame =
                        body.frame().await.with_context(|| format!("a watch ended after {received} events"))??;
                    let lines = frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
                    received += lines;
                }
                anyhow::Ok(())
            });
        }
    }
    let started = Instant::now();
    many(events, 16, |index| client.create(&path, manifests::config_map(&format!("event-{index}")))).await?;
    while let Some(watched) = watches.join_next().await {
        watched??;
    }
    Ok((watchers * events) as f64 / started.elapsed().as_secs_f64())
}

async fn many<F>(count: usize, in_flight: usize, request: impl Fn(usize) -> F) -> anyhow::Result<Rate>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let started = Instant::now();
    let mut durations: Vec<Duration> = futures::stream::iter(0..count)
        .map(|index| {
            let request = request(index);
            async move {
                let started = Instant::now();
                request.await?;
                anyhow::Ok(started.elapsed())
            }
        })
        .buffer_unordered(in_flight)
        .try_collect()
        .await?;
    Ok(Rate { per_second: count as f64 / started.elapsed().as_secs_f64(), median: median(&mut durations) })
}

fn median(durations: &mut [Duration]) -> Duration {
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_the_median() {
        for (durations, expected) in [(vec![], 0), (vec![5], 5), (vec![9, 1, 5], 5), (vec![4, 3, 2, 1], 3)] {
            let mut durations: Vec<Duration> = durations.into_iter().map(Duration::from_millis).collect();
            assert_eq!(median(&mut durations), Duration::from_millis(expected));
        }
    }
}
