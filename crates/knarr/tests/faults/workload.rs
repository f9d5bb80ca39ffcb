//! Writers and watches on a thread in the network of the cluster, which record what they did and saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::StreamExt;
use knarr_client::k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::kube::api::{PostParams, WatchEvent, WatchParams};
use knarr_client::kube::config::{KubeConfigOptions, Kubeconfig};
use knarr_client::kube::{self, Api, Client, Config};
use parking_lot::Mutex;

use crate::harness::wait_timeout;
use crate::history::{Event, Outcome, Read, Records, Version, Write};
use crate::servers::ThreeServers;

const KEYS: usize = 3;
const WRITERS: usize = 4;
const WATCHES: usize = 3;
/// Longer than servers need to find a new leader, so that answers are rarely lost.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
/// Writers write all the time: a watch without events for this long hangs.
const WATCH_TIMEOUT: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(20);

struct Shared {
    /// One for each server.
    clients: Vec<Client>,
    records: Mutex<Records>,
    acknowledged: AtomicUsize,
    stopping: AtomicBool,
    /// The version after which watches end.
    last: Mutex<Option<Version>>,
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
                    acknowledged: AtomicUsize::new(0),
                    stopping: AtomicBool::new(false),
                    last: Mutex::new(None),
                });
                let from = shared.create_objects().await;
                sender.send(shared.clone()).expect("the test waits");
                let watches: Vec<_> =
                    (0..WATCHES).map(|number| tokio::spawn(shared.clone().watch(number, from))).collect();
                let writers: Vec<_> = (0..WRITERS).map(|number| tokio::spawn(shared.clone().write(number))).collect();
                for writer in writers {
                    writer.await.expect("a writer ends");
                }
                let last = shared.last_write().await;
                *shared.last.lock() = Some(last);
                for watch in watches {
                    watch.await.expect("a watch ends");
                }
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

    pub fn finish(self) -> Records {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.thread.join().expect("the workload ends");
        std::mem::take(&mut *self.shared.records.lock())
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
    map.metadata.labels = Some([("test".to_owned(), "faults".to_owned())].into());
    map
}

fn version(map: &ConfigMap) -> Version {
    map.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).expect("a version")
}

fn value(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|data| data.get("value").cloned()).unwrap_or_default()
}

/// A response within the timeout; `None` if there is none.
async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Option<Result<T, kube::Error>> {
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.ok()
}

impl Shared {
    fn maps(&self, server: usize) -> Api<ConfigMap> {
        Api::namespaced(self.clients[server % self.clients.len()].clone(), "default")
    }

    async fn create_objects(&self) -> Version {
        let mut first = None;
        for number in 0..KEYS {
            let created = self.maps(0).create(&PostParams::default(), &object(&key(number), "first", None)).await;
            first = first.or(Some(version(&created.expect("an object")) - 1));
        }
        first.expect("objects")
    }

    /// Reads a register, then replaces the version it read; moves to another server when one fails.
    async fn write(self: Arc<Self>, writer: usize) {
        let mut server = writer;
        let mut count = 0;
        while !self.stopping.load(Ordering::SeqCst) {
            count += 1;
            let key = key((writer + count) % KEYS);
            let started = Instant::now();
            let current = match answer(self.maps(server).get(&key)).await {
                Some(Ok(current)) => current,
                _ => {
                    server += 1;
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (expected, seen) = (version(&current), value(&current));
            let read = Read { key: key.clone(), value: seen, version: expected, started, ended: Instant::now() };
            self.records.lock().reads.push(read);
            let value = format!("{writer}-{count}");
            let started = Instant::now();
            let replacement = object(&key, &value, Some(expected));
            let outcome = match answer(self.maps(server).replace(&key, &PostParams::default(), &replacement)).await {
                Some(Ok(written)) => Outcome::Done(version(&written)),
                Some(Err(kube::Error::Api(status))) if status.code == 409 => Outcome::Refused,
                _ => Outcome::Unknown,
            };
            let write = Write { key, value, expected, outcome, started, ended: Instant::now() };
            self.records.lock().writes.push(write);
            match outcome {
                Outcome::Done(_) => {
                    self.acknowledged.fetch_add(1, Ordering::SeqCst);
                }
                Outcome::Refused => {}
                Outcome::Unknown => server += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A last version, whose event ends the watches. All versions before it were written before it.
    async fn last_write(&self) -> Version {
        let mut server = 0;
        loop {
            let key = key(0);
            if let Some(Ok(current)) = answer(self.maps(server).get(&key)).await {
                let replacement = object(&key, "last", Some(version(&current)));
                if let Some(Ok(written)) =
                    answer(self.maps(server).replace(&key, &PostParams::default(), &replacement)).await
                {
                    return version(&written);
                }
            }
            server += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Watches from a version on; when the watch ends, it is resumed after the last event, at another server.
    async fn watch(self: Arc<Self>, number: usize, from: Version) {
        let (mut server, mut after, mut expired) = (number, from, 0);
        // The last event may have come before anybody knew that it is the last.
        while self.last.lock().is_none_or(|last| after < last) {
            let parameters = WatchParams::default().labels("test=faults");
            let maps = self.maps(server);
            let opened = answer(maps.watch(&parameters, &after.to_string())).await;
            let Some(Ok(stream)) = opened else {
                server += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let mut stream = std::pin::pin!(stream);
            while let Ok(Some(event)) = tokio::time::timeout(WATCH_TIMEOUT, stream.next()).await {
                match event {
                    Ok(WatchEvent::Added(map) | WatchEvent::Modified(map)) => {
                        expired = 0;
                        after = version(&map);
                        let event = Event {
                            key: map.metadata.name.clone().unwrap_or_default(),
                            value: value(&map),
                            version: after,
                        };
                        self.records.lock().watches[number].push(event);
                        if self.last.lock().is_some_and(|last| after >= last) {
                            return;
                        }
                    }
                    Ok(WatchEvent::Error(status)) if status.code == 410 => {
                        // A server that has just started has no history; one of the others does.
                        expired += 1;
                        assert!(expired < 30, "no server has the history since {after}");
                        break;
                    }
                    Ok(WatchEvent::Deleted(map)) => panic!("nothing is deleted: {map:?}"),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            server += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
}
