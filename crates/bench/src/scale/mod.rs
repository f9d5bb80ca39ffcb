//! A control plane with many nodes: what it costs at rest, what clients notice under churn, and how fast it restarts.
//!
//! Starts `knarr server` without a node of its own, and hollow nodes that speak to it as kubelets do: they register, renew
//! their Lease, report their status, watch their pods and report them as running. Deployments fill the nodes with pods, and
//! each has a Service. The scheduler and the controllers are the real ones. Server and clients share the host; the server's
//! memory, CPU time and writes are those of its process.

mod churn;
mod fleet;
mod manifests;
mod node;
mod process;
mod rollout;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;

use crate::client::{Client, Endpoint};
use crate::latencies::{Latencies, Recorder};
use crate::server::Server;
pub use fleet::token_lines;
use fleet::{Failures, Fleet};
use process::Usage;

/// One in so many nodes also watches Services and EndpointSlices, as the proxy of a real node does. Their clients would
/// use all of a small host otherwise.
const NODES_PER_PROXY: usize = 100;

#[derive(clap::Args)]
pub struct Arguments {
    /// How many nodes register.
    #[arg(long, default_value_t = 100)]
    pub nodes: usize,
    /// How many pods run on each node, on average.
    #[arg(long, default_value_t = 30)]
    pub pods_per_node: usize,
    /// How many pods each Deployment and its Service have.
    #[arg(long, default_value_t = 15)]
    pub replicas: usize,
    /// How many seconds the cluster is observed at rest.
    #[arg(long, default_value_t = 60)]
    rest_seconds: u64,
    /// How many seconds pods are deleted and Deployments scaled.
    #[arg(long, default_value_t = 60)]
    churn_seconds: u64,
    /// How many pods are created and deleted a second during that time.
    #[arg(long, default_value_t = 20)]
    pub churn: usize,
}

impl Arguments {
    fn deployments(&self) -> usize {
        (self.nodes * self.pods_per_node).div_ceil(self.replicas)
    }

    fn pods(&self) -> usize {
        self.deployments() * self.replicas
    }
}

/// The namespace in which `measure_pod_starts` creates pods.
pub fn probe_namespace() -> Bytes {
    manifests::namespace(manifests::PROBES)
}

/// Creates pods until a time on a hollow node of their own, and measures when they are bound and when they run.
pub async fn measure_pod_starts(endpoint: &Endpoint, end: Instant) -> anyhow::Result<Vec<(&'static str, Latencies)>> {
    let (measured, other) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let _fleet = Fleet::start(endpoint, 1, &other).await?;
    churn::start_pods(&Client::connect(endpoint).await?, end, &measured).await?;
    Ok(measured.take().into_iter().collect())
}

/// Measures and prints a table.
pub async fn run(knarr: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let tokens = fleet::token_lines(arguments.nodes);
    let server = start(knarr, directory.path(), &tokens).await.context("the server does not start")?;
    let measured = measure(&server, directory.path(), arguments).await;
    let stopping = Instant::now();
    server.stop().await?;
    let failures = measured?;
    row("stop", format!("{:.1} s", stopping.elapsed().as_secs_f64()));
    let server = start(knarr, directory.path(), &tokens).await.context("the server does not start again")?;
    row("restart to ready", format!("{:.1} s", server.startup.as_secs_f64()));
    server.stop().await?;
    anyhow::ensure!(failures.count == 0, "{} requests of nodes failed: {}", failures.count, failures.last);
    Ok(())
}

async fn start(knarr: &Path, directory: &Path, tokens: &str) -> anyhow::Result<Server> {
    let command =
        ["server", "--disable-agent", "--cluster-cidr=10.0.0.0/9", "--service-cluster-ip-range=10.200.0.0/16"];
    Server::start_as(knarr, directory, &command, tokens).await
}

async fn measure(server: &Server, directory: &Path, arguments: &Arguments) -> anyhow::Result<Failures> {
    let process = server.id()?;
    let admin = Client::connect(&server.endpoint).await?;
    row("empty", Usage::read(process)?);
    let recorder = Arc::new(Recorder::default());
    let (fleet, registered) = timed(Fleet::start(&server.endpoint, arguments.nodes, &recorder)).await?;
    row("nodes registered", format!("{} in {:.1} s", arguments.nodes, registered.as_secs_f64()));
    let (_, filled) = timed(rollout::fill(&admin, &fleet, arguments)).await?;
    let rate = arguments.pods() as f64 / filled.as_secs_f64();
    row("pods running", format!("{} in {:.0} s, {rate:.0}/s", arguments.pods(), filled.as_secs_f64()));
    // A new connection: the server closes those that were idle for long, as while pods started.
    let reader = Client::connect(&server.endpoint).await?;
    let (_, ready) = timed(rollout::wait_for_endpoints(&reader, arguments)).await?;
    row("endpoints ready after", format!("{:.1} s more", ready.as_secs_f64()));
    report("fill", &recorder);

    let before = Usage::read(process)?;
    tokio::time::sleep(Duration::from_secs(arguments.rest_seconds)).await;
    let at_rest = Usage::read(process)?;
    row("at rest", &at_rest);
    row("at rest, CPU", format!("{:.3} cores", at_rest.cores_since(&before)));
    row("at rest, written", format!("{:.1} MB a minute", at_rest.megabytes_written_per_minute_since(&before)));
    row("at rest, on disk", format!("{:.0} MB", process::directory_size(&directory.join("data"))? as f64 / 1e6));
    report("at rest", &recorder);

    let before = Usage::read(process)?;
    churn::run(&server.endpoint, arguments, Duration::from_secs(arguments.churn_seconds), &recorder).await?;
    let churned = Usage::read(process)?;
    row("churn", &churned);
    row("churn, CPU", format!("{:.3} cores", churned.cores_since(&before)));
    report("churn", &recorder);
    Ok(fleet.failures())
}

fn report(phase: &str, recorder: &Recorder) {
    for (kind, latencies) in recorder.take() {
        row(&format!("{phase}, {kind}"), latencies);
    }
}

fn row(name: &str, figure: impl std::fmt::Display) {
    println!("{name:36}  {figure}");
}

async fn timed<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, Duration)> {
    let started = Instant::now();
    Ok((work.await?, started.elapsed()))
}
