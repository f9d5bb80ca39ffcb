//! Scrapes the pages of kubelets while there are requests, and computes usage from two readings.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Empty, Limited};
use jiff::Timestamp;
use knarr_api::value::Read;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::page::{self, ContainerName, Page, Reading};
use crate::provided::ProvidingServer;
use crate::request::User;

/// How often the pages are scraped.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// The interval of the first two scrapes, so that the first request gets a response soon.
const FIRST_SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// While a node has not been scraped twice, as when it has just joined, up to this many rounds use the short interval.
const MAX_FAST_ROUNDS: u64 = 60;
/// After this many rounds, requests no longer wait for all nodes.
const MAX_AWAITED_ROUNDS: u64 = 6;
/// Scraping stops after this time without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a request waits for the first scrapes.
const FIRST_SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest page that is read: far beyond that of the largest node.
const MAX_PAGE_BYTES: usize = 16 << 20;
const CONCURRENT_SCRAPES: usize = 64;
/// The usage of a container younger than this at its first reading is computed from its start.
const NEW_CONTAINER_AGE: Duration = Duration::from_secs(60);

/// Usage, computed from two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    pub at: Timestamp,
    pub window: Duration,
    pub nano_cores: u64,
    pub memory: u64,
}

/// Scrapes kubelets while there are requests.
pub struct Collector {
    nodes: Arc<Mutex<HashMap<String, NodeReadings>>>,
    /// The time of the last request; `None` while nothing is scraped.
    last_request: Arc<Mutex<Option<Instant>>>,
    /// How many rounds of scrapes are done since scraping started.
    rounds: Arc<watch::Sender<u64>>,
}

impl Default for Collector {
    fn default() -> Collector {
        Collector { nodes: Arc::default(), last_request: Arc::default(), rounds: Arc::new(watch::Sender::new(0)) }
    }
}

/// The last two readings of a node and its containers.
#[derive(Default)]
struct NodeReadings {
    node: ReadingPair,
    containers: BTreeMap<ContainerName, ReadingPair>,
}

#[derive(Clone, Copy, Default)]
struct ReadingPair {
    before: Option<Reading>,
    last: Reading,
}

impl Collector {
    /// Waits for usage to be known, which it is at once while the nodes are being scraped.
    pub async fn refresh(&self, server: &Arc<dyn ProvidingServer>) {
        let starts = self.last_request.lock().replace(Instant::now()).is_none();
        let mut rounds = self.rounds.subscribe();
        if starts {
            self.rounds.send_replace(0);
            self.nodes.lock().clear();
            let (nodes, last_request, done) = (self.nodes.clone(), self.last_request.clone(), self.rounds.clone());
            knarr_supervisor::spawn(scrape_while_requested(server.clone(), nodes, last_request, done));
        }
        // A node that does not respond must not delay the others.
        let is_known = |rounds: &u64| *rounds >= MAX_AWAITED_ROUNDS || *rounds >= 2 && all_known(&self.nodes.lock());
        let _ = tokio::time::timeout(FIRST_SCRAPE_TIMEOUT, rounds.wait_for(is_known)).await;
    }

    pub fn node(&self, name: &str) -> Option<Usage> {
        self.nodes.lock().get(name)?.node.used()
    }

    /// The usage of each container of a pod; `None` while that of one is unknown.
    pub fn pod(&self, node: &str, namespace: &str, pod: &str) -> Option<Vec<(String, Usage)>> {
        let nodes = self.nodes.lock();
        let first = ContainerName { namespace: namespace.into(), pod: pod.into(), container: String::new() };
        let own = nodes.get(node)?.containers.range(first..);
        let own = own.take_while(|(name, _)| name.namespace == namespace && name.pod == pod);
        let used: Option<Vec<_>> = own.map(|(name, pair)| Some((name.container.clone(), pair.used()?))).collect();
        used.filter(|containers| !containers.is_empty())
    }
}

async fn scrape_while_requested(
    server: Arc<dyn ProvidingServer>,
    nodes: Arc<Mutex<HashMap<String, NodeReadings>>>,
    last_request: Arc<Mutex<Option<Instant>>>,
    rounds: Arc<watch::Sender<u64>>,
) {
    let mut stopping = server.stopping();
    loop {
        // A panic must not end the rounds: while there are requests, nobody starts them again.
        let round = async {
            read_all(&server, &nodes).await;
            Ok(())
        };
        if let Err(reason) = knarr_supervisor::caught(round).await {
            tracing::error!(reason, "cannot read the usage of nodes");
        }
        rounds.send_modify(|rounds| *rounds += 1);
        let round = *rounds.borrow();
        let is_fast = round < 2 || round < MAX_FAST_ROUNDS && !all_known(&nodes.lock());
        let interval = if is_fast { FIRST_SCRAPE_INTERVAL } else { SCRAPE_INTERVAL };
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let mut last_request = last_request.lock();
        if last_request.is_none_or(|at| at.elapsed() > IDLE_TIMEOUT) {
            *last_request = None;
            nodes.lock().clear();
            return;
        }
    }
}

/// Whether the usage of all nodes is known. Without any node it is not.
fn all_known(nodes: &HashMap<String, NodeReadings>) -> bool {
    !nodes.is_empty() && nodes.values().all(|pages| pages.node.used().is_some())
}

async fn read_all(server: &Arc<dyn ProvidingServer>, nodes: &Mutex<HashMap<String, NodeReadings>>) {
    let names: Vec<String> =
        server.objects().list("", "nodes", "").iter().map(|node| node.text(&["metadata", "name"]).to_owned()).collect();
    keep_only(&mut nodes.lock(), &names);
    futures::stream::iter(names)
        .for_each_concurrent(CONCURRENT_SCRAPES, |name| async move {
            match tokio::time::timeout(PAGE_TIMEOUT, read_page(server, &name)).await {
                Ok(Some(page)) => nodes.lock().entry(name).or_default().record(page),
                Ok(None) => {}
                Err(_) => tracing::debug!(node = name, "timeout while scraping a node"),
            }
        })
        .await;
}

/// Adds an empty entry for every new node, and removes those of deleted nodes.
fn keep_only(known: &mut HashMap<String, NodeReadings>, names: &[String]) {
    known.retain(|name, _| names.contains(name));
    for name in names {
        known.entry(name.clone()).or_default();
    }
}

/// Reads the page of a node through the node proxy, like every client.
async fn read_page(server: &Arc<dyn ProvidingServer>, node: &str) -> Option<Page> {
    let path = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
    let request = Request::get(path).body(Empty::new()).ok()?;
    let user = User::named(super::COLLECTOR, &["system:authenticated"]);
    let response = Arc::clone(server).send(request, user).await;
    let code = response.status();
    // A node may send without end.
    let Ok(body) = Limited::new(response.into_body(), MAX_PAGE_BYTES).collect().await else {
        tracing::debug!(node, "the metrics of a node are too large or broke off");
        return None;
    };
    let body = body.to_bytes();
    let text = String::from_utf8_lossy(&body);
    if !code.is_success() {
        tracing::debug!(node, %code, text = text.as_ref(), "cannot scrape a node");
        return None;
    }
    Some(page::parse(&text, Timestamp::now()))
}

impl NodeReadings {
    fn record(&mut self, page: Page) {
        self.node.record(page.node);
        self.containers.retain(|name, _| page.containers.contains_key(name));
        for (name, reading) in page.containers {
            self.containers.entry(name).or_default().record(reading);
        }
    }
}

impl ReadingPair {
    /// A page may repeat a reading, if its kubelet reads the kernel less often; that counts once.
    fn record(&mut self, reading: Reading) {
        if reading.cpu_seconds.is_none() || reading.at <= self.last.at {
            return;
        }
        let restarted = reading.cpu_seconds < self.last.cpu_seconds || reading.started != self.last.started;
        let known = self.last.cpu_seconds.is_some() && !restarted;
        self.before = known.then_some(self.last).or_else(|| start_reading(&reading));
        self.last = reading;
    }

    fn used(&self) -> Option<Usage> {
        let (before, last) = (self.before?, self.last);
        let window = Duration::try_from(last.at.duration_since(before.at)).ok().filter(|window| !window.is_zero())?;
        let seconds = last.cpu_seconds? - before.cpu_seconds?;
        let nano_cores = (seconds.max(0.0) / window.as_secs_f64() * 1e9).round() as u64;
        Some(Usage { at: last.at, window, nano_cores, memory: last.memory? })
    }
}

/// The reading of a new container at its start, when it had used nothing.
fn start_reading(reading: &Reading) -> Option<Reading> {
    let age = Duration::try_from(reading.at.duration_since(reading.started?)).ok()?;
    let is_new = age > Duration::from_millis(500) && age <= NEW_CONTAINER_AGE;
    is_new.then_some(Reading { at: reading.started?, cpu_seconds: Some(0.0), ..*reading })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: i64, cpu: f64, started: i64) -> Reading {
        let second = |second| Timestamp::from_second(second).unwrap();
        Reading { at: second(at), cpu_seconds: Some(cpu), memory: Some(4096), started: Some(second(started)) }
    }

    #[test]
    fn usage_is_the_difference_of_two_readings() {
        for (readings, expected) in [
            (vec![reading(1000, 5.0, 0)], None),
            (vec![reading(1000, 5.0, 0), reading(1010, 10.0, 0)], Some((500_000_000, 10))),
            // The same page again.
            (vec![reading(1000, 5.0, 0), reading(1010, 10.0, 0), reading(1010, 10.0, 0)], Some((500_000_000, 10))),
            // The container was restarted.
            (vec![reading(1000, 5.0, 0), reading(1010, 1.0, 1006)], Some((250_000_000, 4))),
            // The container was just started.
            (vec![reading(1000, 2.0, 980)], Some((100_000_000, 20))),
        ] {
            let mut pair = ReadingPair::default();
            readings.iter().for_each(|reading| pair.record(*reading));
            assert_eq!(pair.used().map(|used| (used.nano_cores, used.window.as_secs())), expected, "{readings:?}");
        }
    }
}
