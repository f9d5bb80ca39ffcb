//! Prints the embedded store's performance on this host: durable creates, watch fan-out, load time, memory.
//!
//! `cargo run --release -p knarr-store --example bench [directory]`

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use knarr_store::{Embedded, Notice, Options, Range, Store};

const PODS: usize = 10_000;
const POD_BYTES: usize = 3_000;
const WATCHERS: usize = 1_000;
const EVENTS: usize = 200;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let directory = tempfile::tempdir_in(parent)?;
    let store = Arc::new(Embedded::open(directory.path(), Options::default())?);
    let empty = resident()?;
    for in_flight in [1, 64] {
        create(&store, in_flight).await?;
    }
    println!(
        "memory: {} MB more than empty, for {} pods",
        (resident()?.saturating_sub(empty)) >> 20,
        store.count("/registry/pods/")
    );
    list(&store)?;
    fan_out(&store).await?;
    drop(store);
    load(directory.path(), "a log")?;
    let store = Embedded::open(directory.path(), Options::default())?;
    store.compact(store.revision()).await?;
    drop(store);
    load(directory.path(), "an image")?;
    Ok(())
}

async fn create(store: &Arc<Embedded>, in_flight: usize) -> Result<(), Box<dyn std::error::Error>> {
    let total = if in_flight == 1 { 1_000 } else { PODS };
    let started = Instant::now();
    let tasks = (0..in_flight).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut slowest = Duration::ZERO;
            for number in (task..total).step_by(in_flight) {
                let started = Instant::now();
                let key = format!("/registry/pods/default/pod-{in_flight}-{number}");
                store.create(&key, Bytes::from(vec![b'x'; POD_BYTES]), None).await?;
                slowest = slowest.max(started.elapsed());
            }
            Ok::<_, knarr_store::Error>(slowest)
        })
    });
    let mut slowest = Duration::ZERO;
    for task in futures::future::join_all(tasks).await {
        slowest = slowest.max(task??);
    }
    let took = started.elapsed();
    let each = took * in_flight as u32 / total as u32;
    println!(
        "create, {in_flight} in flight: {:.0}/s, {each:?} each, slowest {slowest:?}",
        total as f64 / took.as_secs_f64()
    );
    Ok(())
}

fn list(store: &Embedded) -> Result<(), knarr_store::Error> {
    let started = Instant::now();
    let page = store.peek_range(&Range { prefix: "/registry/pods/", ..Range::default() })?;
    let bytes: usize = page.entries.iter().map(|entry| entry.value_len()).sum();
    println!("list {} pods ({} MB): {:?}", page.entries.len(), bytes >> 20, started.elapsed());
    Ok(())
}

async fn fan_out(store: &Arc<Embedded>) -> Result<(), Box<dyn std::error::Error>> {
    let delivered = Arc::new(AtomicUsize::new(0));
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        let mut watch = store.watch("/registry/configmaps/", store.revision())?;
        let delivered = delivered.clone();
        watchers.push(tokio::spawn(async move {
            let mut seen = 0;
            while seen < EVENTS {
                let Some(Notice::Events(events)) = watch.next().await else { return };
                seen += events.len();
                delivered.fetch_add(events.len(), Ordering::Relaxed);
            }
        }));
    }
    let started = Instant::now();
    for number in 0..EVENTS {
        store.create(&format!("/registry/configmaps/default/{number}"), Bytes::from(vec![b'x'; 1000]), None).await?;
    }
    futures::future::join_all(watchers).await;
    let (count, took) = (delivered.load(Ordering::Relaxed), started.elapsed());
    println!("{WATCHERS} watchers × {EVENTS} events: {:.0} deliveries/s ({took:?})", count as f64 / took.as_secs_f64());
    Ok(())
}

fn load(directory: &Path, from: &str) -> Result<(), knarr_store::Error> {
    let started = Instant::now();
    let store = Embedded::open(directory, Options::default())?;
    println!("load {} entries from {from}: {:?}", store.count(""), started.elapsed());
    Ok(())
}

/// The memory this process has in use, in bytes.
fn resident() -> std::io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok());
    Ok(kilobytes.unwrap_or(0usize) << 10)
}
