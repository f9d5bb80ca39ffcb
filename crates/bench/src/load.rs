//! The loads, one function each.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::objects;
use crate::server::Server;

/// How fast many small requests were answered.
pub struct Rate {
    per_second: f64,
    /// Half of the requests took no longer.
    median: Duration,
}

impl fmt::Display for Rate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.0}/s, p50 {:.1} ms", self.per_second, self.median.as_secs_f64() * 1e3)
    }
}

pub struct Listed {
    pub milliseconds: f64,
    pub bytes: usize,
}

pub async fn create_pods(client: &Client, count: usize, in_flight: usize) -> anyhow::Result<Rate> {
    let path = objects::pods();
    many(count, in_flight, |index| client.create(&path, objects::pod(&format!("pod-{index}")))).await
}

pub async fn get_pod(client: &Client, count: usize, in_flight: usize) -> anyhow::Result<Rate> {
    let path = format!("{}/pod-0", objects::pods());
    many(count, in_flight, |_| async { client.get(&path).await.map(drop) }).await
}

/// Lists all pods, one list after the other; the median is what counts.
pub async fn list_pods(client: &Client, expected: usize) -> anyhow::Result<Listed> {
    const TIMES: usize = 10;
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for turn in 0..TIMES {
        let begun = Instant::now();
        let list = client.get(&objects::pods()).await?;
        taken.push(begun.elapsed());
        bytes = list.len();
        if turn == 0 {
            let list: Value = serde_json::from_slice(&list)?;
            let found = list["items"].as_array().map_or(0, Vec::len);
            ensure!(found == expected, "the list has {found} pods, not {expected}");
        }
    }
    Ok(Listed { milliseconds: median(&mut taken).as_secs_f64() * 1e3, bytes })
}

/// Opens watches, makes objects, and answers how many deliveries a second there were until every watcher had them all.
pub async fn watch(server: &Server, client: &Client, watchers: usize, events: usize) -> anyhow::Result<f64> {
    /// As many as one connection may carry without asking the server for more.
    const ON_ONE_CONNECTION: usize = 50;
    let path = objects::config_maps();
    let list: Value = serde_json::from_slice(&client.get(&path).await?)?;
    let revision = list["metadata"]["resourceVersion"].as_str().context("a list without a resource version")?;
    let watch = format!("{path}?watch=1&resourceVersion={revision}");
    let mut watching = JoinSet::new();
    for first in (0..watchers).step_by(ON_ONE_CONNECTION) {
        let connection = Client::connect(server).await?;
        for _ in first..watchers.min(first + ON_ONE_CONNECTION) {
            let mut body = connection.open(&watch).await?;
            watching.spawn(async move {
                let mut seen = 0;
                while seen < events {
                    let frame = body.frame().await.with_context(|| format!("a watch ended after {seen} events"))??;
                    let lines = frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
                    seen += lines;
                }
                anyhow::Ok(())
            });
        }
    }
    let begun = Instant::now();
    many(events, 16, |index| client.create(&path, objects::config_map(&format!("event-{index}")))).await?;
    while let Some(watched) = watching.join_next().await {
        watched??;
    }
    Ok((watchers * events) as f64 / begun.elapsed().as_secs_f64())
}

async fn many<F>(count: usize, in_flight: usize, request: impl Fn(usize) -> F) -> anyhow::Result<Rate>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let begun = Instant::now();
    let mut taken: Vec<Duration> = futures::stream::iter(0..count)
        .map(|index| {
            let request = request(index);
            async move {
                let begun = Instant::now();
                request.await?;
                anyhow::Ok(begun.elapsed())
            }
        })
        .buffer_unordered(in_flight)
        .try_collect()
        .await?;
    Ok(Rate { per_second: count as f64 / begun.elapsed().as_secs_f64(), median: median(&mut taken) })
}

fn median(taken: &mut [Duration]) -> Duration {
    taken.sort_unstable();
    taken.get(taken.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_take_no_longer_than_the_median() {
        for (taken, expected) in [(vec![], 0), (vec![5], 5), (vec![9, 1, 5], 5), (vec![4, 3, 2, 1], 3)] {
            let mut taken: Vec<Duration> = taken.into_iter().map(Duration::from_millis).collect();
            assert_eq!(median(&mut taken), Duration::from_millis(expected));
        }
    }
}
