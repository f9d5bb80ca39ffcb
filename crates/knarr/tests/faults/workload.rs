//! Writers, readers and watches on a thread in the network of the cluster, which record what they did and saw.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use knarr_client::k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use knarr_client::kube::config::{KubeConfigOptions, Kubeconfig};
use knarr_client::kube::{self, Api, Client, Config, ResourceExt as _};
use parking_lot::Mutex;

use crate::harness::wait_timeout;
use crate::history::{ABSENT, DELETED, List, Outcome, Read, Records, Version, Write};
use crate::leaders::Holding;
use crate::servers::ThreeServers;

const KEYS: usize = 3;
const WRITERS: usize = 4;
const WATCHES: usize = 3;
/// Longer than servers need to find a new leader, so that responses are rarely lost.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// Between the lists and the short-lived objects, which are larger.
const LONG_PAUSE: Duration = Duration::from_millis(150);
pub(crate) const LABEL: &str = "test=faults";

pub(crate) struct Shared {
    /// One for each server.
    pub(crate) clients: Vec<Client>,
    pub(crate) records: Mutex<Records>,
    pub(crate) holdings: Mutex<Vec<Holding>>,
    /// When each server responded to a read.
    responses: Mutex<Vec<Vec<Instant>>>,
    acknowledged: AtomicUsize,
    stopping: AtomicBool,
    /// The version after which watches end.
    pub(crate) last: Mutex<Option<Version>>,
}

pub struct Workload {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Workload {
    pub fn start(servers: &ThreeServers) -> Self {
        let namespace = std::fs::File::open(servers.client.path()).expect("a namespace");
        let kubeconfig = servers.nodes[0].data.join("kubeconfig.yaml");
        let addresses: Vec<String> = servers.nodes.iter().map(|node| node.host.address.clone()).collect();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("it is entered");
            // One thread, so that all sockets are made in the namespace.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let shared = Arc::new(Shared {
                    clients: clients(&kubeconfig, &addresses).await,
                    records: Mutex::new(Records { watches: vec![Vec::new(); WATCHES], ..Records::default() }),
                    holdings: Mutex::default(),
                    responses: Mutex::new(vec![Vec::new(); addresses.len()]),
                    acknowledged: AtomicUsize::new(0),
                    stopping: AtomicBool::new(false),
                    last: Mutex::new(None),
                });
                let from = shared.create_objects().await;
                sender.send(shared.clone()).expect("the test waits");
                shared.run(from, addresses.len()).await;
            });
        });
        Self { shared: receiver.recv().expect("the workload starts"), thread }
    }

    /// Waits for further acknowledged writes.
    pub fn await_writes(&self, count: usize) {
        let target = self.shared.acknowledged.load(Ordering::SeqCst) + count;
        let started = Instant::now();
        while self.shared.acknowledged.load(Ordering::SeqCst) < target {
            assert!(!self.thread.is_finished(), "the workload failed");
            assert!(started.elapsed() < wait_timeout(), "no writes are accepted");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The time until a write that is not yet acknowledged is.
    pub fn outage(&self) -> Duration {
        let started = Instant::now();
        // A response may have been on its way.
        std::thread::sleep(Duration::from_millis(100));
        self.await_writes(WRITERS);
        started.elapsed()
    }

    /// The longest time since then that servers other than one did not respond to reads.
    pub fn read_outage(&self, since: Instant, except: usize) -> Duration {
        let responses = self.shared.responses.lock();
        let others = responses.iter().enumerate().filter(|(server, _)| *server != except);
        others.map(|(_, times)| longest_gap(times, since, Instant::now())).max().unwrap_or_default()
    }

    pub fn finish(self) -> (Records, Vec<Holding>) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.thread.join().expect("the workload ends");
        (std::mem::take(&mut *self.shared.records.lock()), std::mem::take(&mut *self.shared.holdings.lock()))
    }
}

/// The longest time without any of `times` between two moments.
fn longest_gap(times: &[Instant], from: Instant, to: Instant) -> Duration {
    let within = times.iter().copied().filter(|time| (from..to).contains(time));
    let all: Vec<Instant> = [from].into_iter().chain(within).chain([to]).collect();
    all.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

#[test]
fn the_longest_gap_reaches_from_the_start_to_the_end() {
    let zero = Instant::now();
    let at = |ms| zero + Duration::from_millis(ms);
    for (times, gap) in [(vec![], 100), (vec![at(5), at(15), at(150)], 95), (vec![at(60), at(70)], 50)] {
        assert_eq!(longest_gap(&times, at(10), at(110)), Duration::from_millis(gap), "{times:?}");
    }
}

async fn clients(kubeconfig: &std::path::Path, addresses: &[String]) -> Vec<Client> {
    let mut clients = Vec::new();
    for address in addresses {
        let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let mut config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration");
        config.cluster_url = format!("https://{address}:6443").parse().expect("a URL");
        config.connect_timeout = Some(Duration::from_secs(1));
        config.read_timeout = None;
        clients.push(Client::try_from(config).expect("a client"));
    }
    clients
}

fn key(number: usize) -> String {
    format!("register-{number}")
}

fn object(key: &str, value: &str, version: Option<Version>) -> ConfigMap {
    let mut map = ConfigMap { data: Some([("value".to_owned(), value.to_owned())].into()), ..ConfigMap::default() };
    map.metadata.name = Some(key.to_owned());
    map.metadata.resource_version = version.map(|version| version.to_string());
    map.metadata.labels =
        Some([LABEL.split_once('=').expect("a label")].map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    map
}

pub(crate) fn version(object: &impl kube::Resource) -> Version {
    object.meta().resource_version.as_deref().and_then(|text| text.parse().ok()).expect("a version")
}

pub(crate) fn value(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|data| data.get("value").cloned()).unwrap_or_default()
}

/// A response within the timeout; `None` if there is none.
pub(crate) async fn response<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Option<Result<T, kube::Error>> {
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.ok()
}

impl Shared {
    pub(crate) fn maps(&self, server: usize) -> Api<ConfigMap> {
        Api::namespaced(self.clients[server % self.clients.len()].clone(), "default")
    }

    async fn run(self: Arc<Self>, from: Version, servers: usize) {
        let mut watches: Vec<_> = (0..WATCHES).map(|number| tokio::spawn(self.clone().watch(number, from))).collect();
        watches.push(tokio::spawn(self.clone().watch_leases(from)));
        let mut writers: Vec<_> = (0..WRITERS).map(|number| tokio::spawn(self.clone().write(number))).collect();
        writers.push(tokio::spawn(self.clone().create_and_delete()));
        writers.push(tokio::spawn(self.clone().list()));
        writers.extend((0..servers).map(|server| tokio::spawn(self.clone().read(server))));
        for writer in writers {
            writer.await.expect("a writer ends");
        }
        let last = self.last_write().await;
        *self.last.lock() = Some(last);
        for watch in watches {
            watch.await.expect("a watch ends");
        }
    }

    /// Creates the registers; returns the version before.
    async fn create_objects(&self) -> Version {
        let mut first = None;
        for number in 0..KEYS {
            let outcome = self.create(0, &key(number), "first").await;
            let Outcome::Done(version) = outcome else { panic!("{outcome:?}") };
            first = first.or(Some(version - 1));
        }
        first.expect("objects")
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn record(&self, key: &str, value: &str, expected: Version, outcome: Outcome, started: Instant) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.records.lock().writes.push(Write { key, value, expected, outcome, started, ended: Instant::now() });
        if matches!(outcome, Outcome::Done(_) | Outcome::Deleted) {
            self.acknowledged.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn create(&self, server: usize, key: &str, value: &str) -> Outcome {
        let started = Instant::now();
        let new = object(key, value, None);
        let outcome = outcome(response(self.maps(server).create(&PostParams::default(), &new)).await);
        self.record(key, value, ABSENT, outcome, started);
        outcome
    }

    async fn replace(&self, server: usize, key: &str, value: &str, expected: Version) -> Outcome {
        let started = Instant::now();
        let new = object(key, value, Some(expected));
        let outcome = outcome(response(self.maps(server).replace(key, &PostParams::default(), &new)).await);
        self.record(key, value, expected, outcome, started);
        outcome
    }

    /// Deletes a version of an object.
    async fn delete(&self, server: usize, key: &str, expected: Version) -> Outcome {
        let started = Instant::now();
        let preconditions = Some(Preconditions { resource_version: Some(expected.to_string()), uid: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let outcome = match response(self.maps(server).delete(key, &parameters)).await {
            Some(Ok(_)) => Outcome::Deleted,
            other => outcome(other.map(|failed| failed.map(|_| unreachable!("it is matched above")))),
        };
        self.record(key, DELETED, expected, outcome, started);
        outcome
    }

    /// Reads a register.
    async fn get(&self, server: usize, key: &str) -> Option<Version> {
        let started = Instant::now();
        let Some(Ok(current)) = response(self.maps(server).get(key)).await else { return None };
        let (version, value) = (version(&current), value(&current));
        self.records.lock().reads.push(Read { key: key.to_owned(), value, version, started, ended: Instant::now() });
        Some(version)
    }

    /// Reads a register, then replaces the version it read. Each writer has a server of its own, so that a server that hangs does
    /// not hold up all of them, and uses the others only while that one fails.
    async fn write(self: Arc<Self>, writer: usize) {
        let mut server = writer;
        let mut count = 0;
        while !self.is_stopping() {
            count += 1;
            let key = key((writer + count) % KEYS);
            let outcome = match self.get(server, &key).await {
                Some(expected) => self.replace(server, &key, &format!("{writer}-{count}"), expected).await,
                None => Outcome::Unknown,
            };
            server = if outcome == Outcome::Unknown { server + 1 } else { writer };
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Creates objects and deletes them again.
    async fn create_and_delete(self: Arc<Self>) {
        let mut server = 0;
        let mut count = 0;
        while !self.is_stopping() {
            count += 1;
            let key = format!("short-{count}");
            let outcome = match self.create(server, &key, &format!("short {count}")).await {
                Outcome::Done(version) => self.delete(server, &key, version).await,
                other => other,
            };
            // What became of it is not known: it stays, if it is there.
            server = if outcome == Outcome::Unknown { server + 1 } else { 0 };
            tokio::time::sleep(LONG_PAUSE).await;
        }
    }

    /// Lists everything, at one server after the other.
    async fn list(self: Arc<Self>) {
        for server in 0.. {
            if self.is_stopping() {
                return;
            }
            let started = Instant::now();
            if let Some(Ok(list)) = response(self.maps(server).list(&ListParams::default().labels(LABEL))).await {
                let ended = Instant::now();
                let version = list.metadata.resource_version.and_then(|text| text.parse().ok()).expect("a version");
                let items: BTreeMap<String, (Version, String)> =
                    list.items.iter().map(|map| (map.name_any(), (self::version(map), value(map)))).collect();
                self.records.lock().lists.push(List { version, items, started, ended });
            }
            tokio::time::sleep(LONG_PAUSE).await;
        }
    }

    /// Reads from one server, whether it responds or not.
    async fn read(self: Arc<Self>, server: usize) {
        while !self.is_stopping() {
            if self.get(server, &key(0)).await.is_some() {
                self.responses.lock()[server].push(Instant::now());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A last version, whose event ends the watches. All versions before it were written before it.
    async fn last_write(&self) -> Version {
        let key = key(0);
        for server in 0.. {
            if let Some(expected) = self.get(server, &key).await
                && let Outcome::Done(version) = self.replace(server, &key, &format!("last {server}"), expected).await
            {
                return version;
            }
            tokio::time::sleep(PAUSE).await;
        }
        unreachable!("it is tried for ever")
    }
}

/// What a response says about a write.
fn outcome(response: Option<Result<ConfigMap, kube::Error>>) -> Outcome {
    match response {
        Some(Ok(written)) => Outcome::Done(version(&written)),
        Some(Err(kube::Error::Api(status))) if status.code == 409 => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}
