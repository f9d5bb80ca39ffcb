//! One ordinary user floods the server with lists while nodes renew their leases and an administrator reads.
//!
//! The flood: many concurrent lists of all pods in several representations, some read slowly, with writes of a service
//! account and idle watches beside them. The probes: lease renewals as kubelets send them, an administrator's get, and the
//! start of a pod on a hollow node. They run before, during and after the flood, on a thread of their own; the threads of
//! the flood have a lower priority, since its clients would be on other machines.

mod load;
mod probe;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::client::{Client, Endpoint};
use crate::latencies::Latencies;
use crate::server::{self, Server};
use crate::{load as workload, manifests, scale};
use load::Flood;

/// The tokens of the ordinary user and of the service account that writes.
pub const FLOODER: &str = "flooder";
pub const WRITER: &str = "writer";
/// How many nodes renew leases.
pub const NODES: usize = 20;
/// The tokens of the nodes.
pub const NODE_TOKENS: [&str; NODES] = [
    "node-0", "node-1", "node-2", "node-3", "node-4", "node-5", "node-6", "node-7", "node-8", "node-9", "node-10",
    "node-11", "node-12", "node-13", "node-14", "node-15", "node-16", "node-17", "node-18", "node-19",
];

#[derive(clap::Args)]
pub struct Arguments {
    /// How many pods each list returns.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How many lists are sent at once.
    #[arg(long, default_value_t = 500)]
    pub lists: usize,
    /// How many of them are read slowly.
    #[arg(long, default_value_t = 50)]
    pub slow: usize,
    /// How many writes are sent a second.
    #[arg(long, default_value_t = 2_000)]
    pub writes: u32,
    /// How many watches are open.
    #[arg(long, default_value_t = 5_000)]
    pub watches: usize,
    /// How many seconds the flood lasts.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Lists only plain JSON, instead of also gzip, protobuf, tables and metadata.
    #[arg(long)]
    pub plain: bool,
    /// A running server to measure instead of starting one. It needs the tokens that `--print-tokens` prints.
    #[arg(long, requires_all = ["authority", "process"])]
    address: Option<SocketAddr>,
    /// The CA certificate (PEM) of that server.
    #[arg(long)]
    authority: Option<PathBuf>,
    /// The process ID of that server.
    #[arg(long)]
    process: Option<u32>,
    /// Prints the token file and exits.
    #[arg(long)]
    print_tokens: bool,
}

/// The lines of the token file for the users of the flood.
pub fn token_lines() -> String {
    let mut lines =
        format!("{FLOODER},flooder,2\n{WRITER},system:serviceaccount:bench:writer,3,system:serviceaccounts\n");
    for (at, token) in NODE_TOKENS.iter().enumerate() {
        let _ = writeln!(lines, "{token},system:node:{token},{},system:nodes", 100 + at);
    }
    lines
}

/// Measures and prints a table.
pub fn run(knarr: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.print_tokens {
        print!("{},bench,1,system:masters\n{}", server::TOKEN, token_lines());
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(lower_priority).build()?;
    let external = arguments.address.zip(arguments.authority.clone()).zip(arguments.process);
    if let Some(((address, authority), process)) = external {
        let endpoint = Endpoint { address, token: server::TOKEN, authority };
        return runtime.block_on(measure(endpoint, process, arguments));
    }
    let directory = tempfile::tempdir()?;
    let tokens = format!("{}{}", token_lines(), scale::token_lines(1));
    let command = ["server", "--disable-agent"];
    let started = Server::start_as(knarr, directory.path(), &command, &tokens);
    let server = runtime.block_on(started).context("the server does not start")?;
    let measured = runtime.block_on(measure(server.endpoint.clone(), server.id()?, arguments));
    runtime.block_on(server.stop())?;
    measured
}

async fn measure(endpoint: Endpoint, process: u32, arguments: &Arguments) -> anyhow::Result<()> {
    let admin = Client::connect(&endpoint).await?;
    prepare(&admin, arguments).await?;
    println!("memory with {} pods  {} MB", arguments.pods, server::memory_of(process)? / 1_000_000);
    let peak = Arc::new(AtomicU64::new(0));
    let sampling = tokio::spawn(sample_memory(process, peak.clone()));
    let idle = Duration::from_secs(5);
    let starts_pods = arguments.address.is_none();
    if starts_pods {
        admin.create("/api/v1/namespaces", scale::probe_namespace()).await?;
    }
    report("before", probe::run(&endpoint, idle, starts_pods).await?);
    let flood = Flood::start(&endpoint, arguments).await?;
    // The first lists have started.
    tokio::time::sleep(Duration::from_secs(1)).await;
    report("during", probe::run(&endpoint, Duration::from_secs(arguments.seconds), starts_pods).await?);
    println!("{}", flood.stop().await);
    println!("peak memory  {} MB", peak.load(Ordering::Relaxed) / 1_000_000);
    tokio::time::sleep(idle).await;
    report("after", probe::run(&endpoint, idle, starts_pods).await?);
    sampling.abort();
    println!("memory at the end  {} MB", server::memory_of(process)? / 1_000_000);
    Ok(())
}

fn report(phase: &str, latencies: Vec<(&'static str, Latencies)>) {
    for (kind, latencies) in latencies {
        println!("{phase:6}  {kind} {latencies}");
    }
}

async fn sample_memory(process: u32, peak: Arc<AtomicU64>) {
    while let Ok(bytes) = server::memory_of(process) {
        peak.fetch_max(bytes, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Creates the pods, the roles of the users, and what the writes change.
async fn prepare(admin: &Client, arguments: &Arguments) -> anyhow::Result<()> {
    admin.create("/api/v1/namespaces", manifests::namespace()).await?;
    // A controller may have created it.
    let headers = [("accept", "application/json"), ("content-type", "application/json")];
    let response = admin.send(Method::POST, &manifests::accounts(), &headers, manifests::account()).await?;
    ensure!(response.status().is_success() || response.status() == 409, "the account: {}", response.status());
    workload::create_pods(admin, arguments.pods, 64).await?;
    for at in 0..load::WRITTEN {
        admin.create(&manifests::config_maps(), manifests::config_map(&load::written_name(at))).await?;
    }
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = [
        ("flooder", json!({"apiGroups": [""], "resources": ["pods", "serviceaccounts"], "verbs": ["list", "watch"]})),
        (
            "system:serviceaccount:bench:writer",
            json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}),
        ),
    ];
    for (at, (user, rule)) in rules.into_iter().enumerate() {
        let name = format!("bench-{at}");
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]});
        admin.create(&format!("{rbac}/clusterroles"), Bytes::from(role.to_string())).await?;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        admin.create(&format!("{rbac}/clusterrolebindings"), Bytes::from(binding.to_string())).await?;
    }
    for node in NODE_TOKENS {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node, "namespace": probe::NAMESPACE},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 40},
        });
        admin.create(&probe::leases(), Bytes::from(lease.to_string())).await?;
    }
    Ok(())
}

fn lower_priority() {
    // SAFETY: changes the niceness of the calling thread only, and touches no memory.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// Stops the tasks of the flood.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
