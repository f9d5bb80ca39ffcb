//! What a write costs while many nodes watch their own pods: `cargo run --release -p knarr-store --example watches`.
//!
//! Each watch reads the changes of one topic, or filters those of the whole group, as it had to without topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use knarr_store::{Embedded, Notice, Options, Scope, Store, TopicIndex};

const GROUP: &str = "/registry/pods/";
const WRITES: usize = 2_000;
const INDEX: TopicIndex = TopicIndex { group: GROUP, topic_of: topic };

/// The topic is what comes before the first space.
fn topic(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|byte| *byte == b' ')?;
    std::str::from_utf8(&value[..end]).ok().map(str::to_owned)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Runtime::new()?;
    println!("{:>8}  {:>14}  {:>14}", "watches", "one topic", "whole group");
    for watches in [100, 1_000, 5_000] {
        let topics = runtime.block_on(measure(watches, true))?;
        let whole = runtime.block_on(measure(watches, false))?;
        println!("{watches:>8}  {:>11.1} µs  {:>11.1} µs", micros(topics), micros(whole));
    }
    Ok(())
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The CPU time of the process per write, until every watch has its changes.
async fn measure(watches: usize, by_topic: bool) -> Result<Duration, Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let store = Arc::new(Embedded::open(directory.path(), Options::default())?);
    store.index_topics(INDEX);
    let delivered = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for node in 0..watches {
        let name = format!("node-{node}");
        let scope = if by_topic { Scope::Topic { prefix: GROUP, topic: &name } } else { Scope::Prefix(GROUP) };
        let mut watch = store.watch_scope(scope, store.revision())?;
        let delivered = delivered.clone();
        tasks.spawn(async move {
            while let Some(Notice::Events(events)) = watch.next().await {
                let own = events.iter().flat_map(|event| &event.current);
                let own = own.filter(|entry| topic(&entry.value()).is_some_and(|node| node == name)).count();
                delivered.fetch_add(own, Ordering::Relaxed);
            }
        });
    }
    let started = cpu_time()?;
    for write in 0..WRITES {
        let value = format!("node-{} {}", write % watches, "x".repeat(2000));
        store.create(&format!("{GROUP}default/pod-{write}"), Bytes::from(value), None).await?;
    }
    let waiting = Instant::now();
    while delivered.load(Ordering::Relaxed) < WRITES && waiting.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let used = cpu_time()? - started;
    tasks.abort_all();
    Ok(used / WRITES as u32)
}

/// The CPU time of this process.
fn cpu_time() -> Result<Duration, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or("an unknown format")?;
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}
