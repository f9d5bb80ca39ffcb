//! Reading the nodes' pages while somebody wants to know, and what follows from two readings.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Empty};
use jiff::Timestamp;
use knarr_api::value::Read;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::page::{self, ContainerName, Page, Reading};
use crate::request::Sender;
use crate::request::User;
use crate::state::ApiServer;

/// How often the pages are read while somebody asks.
const PACE: Duration = Duration::from_secs(15);
/// Between the first two readings, so that the first question has an answer soon.
const FIRST_PACE: Duration = Duration::from_secs(1);
/// While a node has not been read twice, as when it has just joined, so many rounds go at the first pace.
const HURRIED: u64 = 60;
/// After so many rounds, questions wait for no node any more.
const AWAITED: u64 = 6;
/// Nobody having asked for this long, reading ends.
const IDLE: Duration = Duration::from_secs(120);
/// A question waits this long for the first readings.
const PATIENCE: Duration = Duration::from_secs(5);
const PAGE_TIME: Duration = Duration::from_secs(10);
const NODES_AT_ONCE: usize = 64;
/// A container that began this short a time before its first reading is reckoned from its beginning.
const YOUNG: Duration = Duration::from_secs(60);

/// What is used, from two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    pub at: Timestamp,
    pub window: Duration,
    pub nano_cores: u64,
    pub memory: u64,
}

pub struct Collector {
    nodes: Arc<Mutex<HashMap<String, Pages>>>,
    /// When somebody asked last; none while nothing is read.
    asked: Arc<Mutex<Option<Instant>>>,
    /// How many rounds of readings the present run has behind it.
    rounds: Arc<watch::Sender<u64>>,
}

impl Default for Collector {
    fn default() -> Collector {
        Collector { nodes: Arc::default(), asked: Arc::default(), rounds: Arc::new(watch::Sender::new(0)) }
    }
}

/// The last readings of a node, each with the one before it.
#[derive(Default)]
struct Pages {
    node: Pair,
    containers: BTreeMap<ContainerName, Pair>,
}

#[derive(Clone, Copy, Default)]
struct Pair {
    before: Option<Reading>,
    last: Reading,
}

impl Collector {
    /// Returns when there is something to tell, which is at once while the nodes are being read.
    pub async fn refresh(&self, server: &Arc<ApiServer>) {
        let starts = self.asked.lock().replace(Instant::now()).is_none();
        let mut rounds = self.rounds.subscribe();
        if starts {
            self.rounds.send_replace(0);
            self.nodes.lock().clear();
            let (nodes, asked, done) = (self.nodes.clone(), self.asked.clone(), self.rounds.clone());
            tokio::spawn(read_while_asked(server.clone(), nodes, asked, done));
        }
        // A node that does not answer must not keep the others from being shown.
        let told = |rounds: &u64| *rounds >= AWAITED || *rounds >= 2 && all_known(&self.nodes.lock());
        let _ = tokio::time::timeout(PATIENCE, rounds.wait_for(told)).await;
    }

    pub fn node(&self, name: &str) -> Option<Use> {
        self.nodes.lock().get(name)?.node.used()
    }

    /// What each container of a pod uses; none while that is not known of all of them.
    pub fn pod(&self, node: &str, namespace: &str, pod: &str) -> Option<Vec<(String, Use)>> {
        let nodes = self.nodes.lock();
        let first = ContainerName { namespace: namespace.into(), pod: pod.into(), container: String::new() };
        let own = nodes.get(node)?.containers.range(first..);
        let own = own.take_while(|(name, _)| name.namespace == namespace && name.pod == pod);
        let used: Option<Vec<_>> = own.map(|(name, pair)| Some((name.container.clone(), pair.used()?))).collect();
        used.filter(|containers| !containers.is_empty())
    }
}

async fn read_while_asked(
    server: Arc<ApiServer>,
    nodes: Arc<Mutex<HashMap<String, Pages>>>,
    asked: Arc<Mutex<Option<Instant>>>,
    rounds: Arc<watch::Sender<u64>>,
) {
    let mut stopping = server.stopping.clone();
    loop {
        read_all(&server, &nodes).await;
        rounds.send_modify(|rounds| *rounds += 1);
        let round = *rounds.borrow();
        let hurries = round < 2 || round < HURRIED && !all_known(&nodes.lock());
        let pace = if hurries { FIRST_PACE } else { PACE };
        tokio::select! {
            () = tokio::time::sleep(pace) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let mut asked = asked.lock();
        if asked.is_none_or(|at| at.elapsed() > IDLE) {
            *asked = None;
            nodes.lock().clear();
            return;
        }
    }
}

/// Before the first node has registered nothing is known.
fn all_known(nodes: &HashMap<String, Pages>) -> bool {
    !nodes.is_empty() && nodes.values().all(|pages| pages.node.used().is_some())
}

async fn read_all(server: &Arc<ApiServer>, nodes: &Mutex<HashMap<String, Pages>>) {
    let names: Vec<String> =
        server.objects.list("", "nodes", "").iter().map(|node| node.text(&["metadata", "name"]).to_owned()).collect();
    keep_only(&mut nodes.lock(), &names);
    futures::stream::iter(names)
        .for_each_concurrent(NODES_AT_ONCE, |name| async move {
            match tokio::time::timeout(PAGE_TIME, read_page(server, &name)).await {
                Ok(Some(page)) => nodes.lock().entry(name).or_default().take(page),
                Ok(None) => {}
                Err(_) => tracing::debug!(node = name, "what a node uses could not be read in time"),
            }
        })
        .await;
}

/// Every node has a place, also before it was read for the first time.
fn keep_only(known: &mut HashMap<String, Pages>, names: &[String]) {
    known.retain(|name, _| names.contains(name));
    for name in names {
        known.entry(name.clone()).or_default();
    }
}

/// Asks by the way every client has to a node.
async fn read_page(server: &Arc<ApiServer>, node: &str) -> Option<Page> {
    let path = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
    let request = Request::get(path).body(Empty::<Bytes>::new()).ok()?;
    let user = User::named("system:metrics", &["system:masters", "system:authenticated"]);
    let answer = server.handle(request, &Sender::Trusted(Arc::new(user))).await;
    let code = answer.status();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    if !code.is_success() {
        tracing::debug!(node, %code, text = text.as_ref(), "what a node uses could not be read");
        return None;
    }
    Some(page::parse(&text, Timestamp::now()))
}

impl Pages {
    fn take(&mut self, page: Page) {
        self.node.take(page.node);
        self.containers.retain(|name, _| page.containers.contains_key(name));
        for (name, reading) in page.containers {
            self.containers.entry(name).or_default().take(reading);
        }
    }
}

impl Pair {
    /// A page may say the same twice, when its kubelet reads the kernel less often; that is one reading.
    fn take(&mut self, reading: Reading) {
        if reading.cpu_seconds.is_none() || reading.at <= self.last.at {
            return;
        }
        let restarted = reading.cpu_seconds < self.last.cpu_seconds || reading.started != self.last.started;
        let known = self.last.cpu_seconds.is_some() && !restarted;
        self.before = known.then_some(self.last).or_else(|| beginning(&reading));
        self.last = reading;
    }

    fn used(&self) -> Option<Use> {
        let (before, last) = (self.before?, self.last);
        let window = Duration::try_from(last.at.duration_since(before.at)).ok().filter(|window| !window.is_zero())?;
        let seconds = last.cpu_seconds? - before.cpu_seconds?;
        let nano_cores = (seconds.max(0.0) / window.as_secs_f64() * 1e9).round() as u64;
        Some(Use { at: last.at, window, nano_cores, memory: last.memory? })
    }
}

/// When a young container began it had used nothing.
fn beginning(reading: &Reading) -> Option<Reading> {
    let age = Duration::try_from(reading.at.duration_since(reading.started?)).ok()?;
    let young = age > Duration::from_millis(500) && age <= YOUNG;
    young.then_some(Reading { at: reading.started?, cpu_seconds: Some(0.0), ..*reading })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: i64, cpu: f64, started: i64) -> Reading {
        let second = |second| Timestamp::from_second(second).unwrap();
        Reading { at: second(at), cpu_seconds: Some(cpu), memory: Some(4096), started: Some(second(started)) }
    }

    #[test]
    fn two_readings_make_a_rate() {
        for (readings, expected) in [
            (vec![reading(1000, 5.0, 0)], None),
            (vec![reading(1000, 5.0, 0), reading(1010, 10.0, 0)], Some((500_000_000, 10))),
            // The same page again.
            (vec![reading(1000, 5.0, 0), reading(1010, 10.0, 0), reading(1010, 10.0, 0)], Some((500_000_000, 10))),
            // Another life of the container.
            (vec![reading(1000, 5.0, 0), reading(1010, 1.0, 1006)], Some((250_000_000, 4))),
            // Just begun.
            (vec![reading(1000, 2.0, 980)], Some((100_000_000, 20))),
        ] {
            let mut pair = Pair::default();
            readings.iter().for_each(|reading| pair.take(*reading));
            assert_eq!(pair.used().map(|used| (used.nano_cores, used.window.as_secs())), expected, "{readings:?}");
        }
    }
}
