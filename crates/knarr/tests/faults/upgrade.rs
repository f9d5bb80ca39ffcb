//! A rolling upgrade: servers are replaced one after the other, as an upgrade of the package does, while a client on a node sends
//! requests through the node's balancer. The client retries as client-go does, and no request of it fails.
//!
//! `KNARR_OLD_PROGRAM` names the older program that everything is started with; agents keep it. Without it, servers are only
//! restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use knarr_client::k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::kube::api::{DeleteParams, PostParams};
use knarr_client::kube::config::{KubeConfigOptions, Kubeconfig};
use knarr_client::kube::{self, Api, Client, Config};

use crate::harness::program;
use crate::pods::Pods;
use crate::servers::ThreeServers;

/// As in client-go: ten retries, a second apart unless the server says otherwise.
const RETRIES: usize = 10;
const RETRY_DELAY: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);
/// The port of a node's balancer.
const BALANCER: &str = "https://127.0.0.1:6444";

#[derive(Debug, Default)]
struct Report {
    requests: usize,
    retries: usize,
    failures: Vec<String>,
    slowest: Duration,
}

struct Requests {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

impl Requests {
    /// Creates, reads, updates and deletes objects from the first node until stopped.
    fn start(servers: &ThreeServers) -> Self {
        let namespace = std::fs::File::open(servers.agents[0].host.path()).expect("a namespace");
        let kubeconfig = servers.nodes[0].data.join("kubeconfig.yaml");
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let thread = std::thread::spawn(move || {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("it is entered");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let file = Kubeconfig::read_from(&kubeconfig).expect("a kubeconfig");
                let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
                let mut config = config.expect("a configuration");
                config.cluster_url = BALANCER.parse().expect("a URL");
                let maps = Api::namespaced(Client::try_from(config).expect("a client"), "default");
                let mut report = Report::default();
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    report.life_of(&maps, number).await;
                    tokio::time::sleep(PAUSE).await;
                }
                report
            })
        });
        Self { stopping, thread }
    }

    fn finish(self) -> Report {
        self.stopping.store(true, Ordering::SeqCst);
        self.thread.join().expect("the requests end")
    }
}

impl Report {
    async fn life_of(&mut self, maps: &Api<ConfigMap>, number: usize) {
        let name = format!("upgrade-{number}");
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.clone());
        let (post, delete) = (PostParams::default(), DeleteParams::default());
        let created = self.send("create", false, || maps.create(&post, &map)).await;
        let Some(created) = created else { return };
        self.send("get", true, || maps.get(&name)).await;
        self.send("update", false, || maps.replace(&name, &post, &created)).await;
        self.send("delete", false, || maps.delete(&name, &delete)).await;
    }

    /// Sends a request until it succeeds or client-go would give up.
    async fn send<T, F>(&mut self, what: &str, is_read: bool, request: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let started = Instant::now();
        self.requests += 1;
        for attempt in 0..=RETRIES {
            match request().await {
                Ok(response) => {
                    self.slowest = self.slowest.max(started.elapsed());
                    return Some(response);
                }
                Err(error) if attempt < RETRIES && is_retried(&error, is_read) => {
                    self.retries += 1;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => {
                    self.failures.push(format!("{what} after {attempt} retries: {error}"));
                    return None;
                }
            }
        }
        None
    }
}

/// Whether client-go repeats a request: if the server asks for it, and reads also if the connection broke.
fn is_retried(error: &kube::Error, is_read: bool) -> bool {
    match error {
        kube::Error::Api(status) => {
            status.code == 429 || status.details.as_ref().is_some_and(|details| details.retry_after_seconds > 0)
        }
        _ => is_read,
    }
}

#[test]
#[ignore = "takes minutes: run by `make faults`"]
fn no_request_fails_while_servers_are_upgraded_one_by_one() {
    if !crate::is_possible() {
        return;
    }
    let old = std::env::var("KNARR_OLD_PROGRAM").unwrap_or_else(|_| program());
    let mut servers = ThreeServers::start_with(&old);
    servers.add_agent();
    let pods = Pods::start(&servers);
    let requests = Requests::start(&servers);
    for number in 0..servers.nodes.len() {
        servers.nodes[number].stop();
        servers.nodes[number].set_program(&program());
        servers.nodes[number].start();
        servers.await_members();
        servers.await_heartbeat();
    }
    let report = requests.finish();
    eprintln!(
        "{} requests, {} retries, the slowest took {:?}, failures: {:?}",
        report.requests, report.retries, report.slowest, report.failures
    );
    assert!(report.requests > 100 && report.failures.is_empty(), "{report:?}");
    pods.check(&servers);
    // The new servers serve agents of the older version.
    servers.await_heartbeat();
    let printed = servers.kubectl(0, &["exec", "deployment/lasting", "--", "echo", "still there"]);
    assert_eq!(printed, "still there");
}
