//! The API server's figures: starts `knarr apiserver` on an empty folder, loads it from this process, and prints one table.
//!
//! In: a release build of `knarr`. Out: how fast objects are made, listed, read and told of, what memory they take, and how long a
//! cold start is. Server and client share the machine, so the figures are those of both together. Run by `make bench`.

mod client;
mod load;
mod objects;
mod server;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;

use client::Client;
use server::Server;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    /// The binary to measure; the one beside this program when it is not given.
    #[arg(long)]
    knarr: Option<PathBuf>,
    /// How many pods are made.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How many requests are under way at once.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// How many read one object.
    #[arg(long, default_value_t = 40_000)]
    gets: usize,
    /// How many watch.
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// How many events each watcher is told of.
    #[arg(long, default_value_t = 200)]
    events: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let knarr = match arguments.knarr.clone() {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("knarr"),
    };
    let folder = tempfile::tempdir()?;
    let server = Server::start(&knarr, folder.path()).await.context("the server does not start")?;
    let measured = measure(&server, &arguments).await;
    let (started, again) = (server.started, measured.is_ok());
    server.stop().await?;
    let mut rows = measured?;
    if again {
        let server = Server::start(&knarr, folder.path()).await.context("the server does not start again")?;
        rows.push(("start with these pods to ready".to_owned(), format!("{:.3} s", server.started.as_secs_f64())));
        server.stop().await?;
    }
    rows.push(("cold start to ready".to_owned(), format!("{:.3} s", started.as_secs_f64())));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, figure) in rows {
        println!("{name:width$}  {figure}");
    }
    Ok(())
}

async fn measure(server: &Server, arguments: &Arguments) -> anyhow::Result<Vec<(String, String)>> {
    let Arguments { pods, in_flight, gets, watchers, events, .. } = *arguments;
    let client = Client::connect(server).await?;
    client.create("/api/v1/namespaces", objects::namespace()).await?;
    client.create(&objects::accounts(), objects::account()).await?;
    let mut rows = Vec::new();
    let made = load::create_pods(&client, pods, in_flight).await?;
    rows.push((format!("create {pods} pods, {in_flight} in flight"), made.to_string()));
    let list = load::list_pods(&client, pods).await?;
    rows.push((format!("list {pods} pods"), format!("{:.0} ms, {:.0} MB", list.milliseconds, list.bytes as f64 / 1e6)));
    let read = load::get_pod(&client, gets, in_flight).await?;
    rows.push((format!("get one pod, {in_flight} in flight"), read.to_string()));
    rows.push((format!("memory with {pods} pods"), format!("{:.0} MB", server.memory()? as f64 / 1e6)));
    let told = load::watch(server, &client, watchers, events).await?;
    rows.push((format!("{watchers} watchers x {events} events"), format!("{told:.0} deliveries/s, none cut off")));
    rows.push(("memory with the watchers".to_owned(), format!("{:.0} MB", server.memory()? as f64 / 1e6)));
    Ok(rows)
}
