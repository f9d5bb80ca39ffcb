//! Benchmark of the API server: starts `knarr apiserver` on an empty directory, sends it load, and prints one table.
//!
//! In: a release build of `knarr`. Out: the throughput of creates, lists, reads and watches, the memory, and the duration of
//! a cold start. Server and client share the host, so the figures are those of both together. Run by `make bench`.
//!
//! `knarr-bench flood` measures what others notice while one user lists as much as it can; `knarr-bench scale` measures a
//! control plane with many nodes.

mod client;
mod flood;
mod latencies;
mod load;
mod manifests;
mod scale;
mod server;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use client::Client;
use server::Server;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The binary to measure; by default the one beside this program.
    #[arg(long)]
    knarr: Option<PathBuf>,
    /// How many pods are created.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How many requests are in flight.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// How many reads of one object are sent.
    #[arg(long, default_value_t = 40_000)]
    gets: usize,
    /// How many watches are opened.
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// How many events each watcher receives.
    #[arg(long, default_value_t = 200)]
    events: usize,
}

#[derive(Subcommand)]
enum Command {
    /// Measures node heartbeats and an administrator's reads while an ordinary user floods the server with lists.
    Flood(flood::Arguments),
    /// Measures a control plane with hollow nodes: they register, renew leases and report their pods as running.
    Scale(scale::Arguments),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let knarr = match arguments.knarr.clone() {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("knarr"),
    };
    match &arguments.command {
        Some(Command::Flood(flood)) => flood::run(&knarr, flood),
        Some(Command::Scale(scale)) => tokio::runtime::Runtime::new()?.block_on(scale::run(&knarr, scale)),
        None => tokio::runtime::Runtime::new()?.block_on(run(knarr, arguments)),
    }
}

async fn run(knarr: PathBuf, arguments: Arguments) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    // The users of the flood, so that both runs start alike.
    let tokens = flood::token_lines();
    let server = Server::start(&knarr, directory.path(), &tokens).await.context("the server does not start")?;
    let measured = measure(&server, &arguments).await;
    let (startup, restart) = (server.startup, measured.is_ok());
    server.stop().await?;
    let mut rows = measured?;
    if restart {
        let server =
            Server::start(&knarr, directory.path(), &tokens).await.context("the server does not start again")?;
        rows.push(("start with these pods to ready".to_owned(), format!("{:.3} s", server.startup.as_secs_f64())));
        server.stop().await?;
    }
    rows.push(("cold start to ready".to_owned(), format!("{:.3} s", startup.as_secs_f64())));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, figure) in rows {
        println!("{name:width$}  {figure}");
    }
    Ok(())
}

async fn measure(server: &Server, arguments: &Arguments) -> anyhow::Result<Vec<(String, String)>> {
    let Arguments { pods, in_flight, gets, watchers, events, .. } = *arguments;
    let client = Client::connect(&server.endpoint).await?;
    client.create("/api/v1/namespaces", manifests::namespace()).await?;
    client.create(&manifests::accounts(), manifests::account()).await?;
    let mut rows = Vec::new();
    let created = load::create_pods(&client, pods, in_flight).await?;
    rows.push((format!("create {pods} pods, {in_flight} in flight"), created.to_string()));
    let list = load::list_pods(&client, pods).await?;
    rows.push((format!("list {pods} pods"), format!("{:.0} ms, {:.0} MB", list.milliseconds, list.bytes as f64 / 1e6)));
    let read = load::get_pod(&client, gets, in_flight).await?;
    rows.push((format!("get one pod, {in_flight} in flight"), read.to_string()));
    rows.push((format!("memory with {pods} pods"), format!("{:.0} MB", server.memory()? as f64 / 1e6)));
    let deliveries = load::watch(&server.endpoint, &client, watchers, events).await?;
    rows.push((
        format!("{watchers} watchers x {events} events"),
        format!("{deliveries:.0} deliveries/s, none cut off"),
    ));
    rows.push(("memory with the watchers".to_owned(), format!("{:.0} MB", server.memory()? as f64 / 1e6)));
    Ok(rows)
}
