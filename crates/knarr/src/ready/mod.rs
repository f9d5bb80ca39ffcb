//! When a server is ready: not when its parts have been started, but when each does from outside what it is for.
//!
//! In: one probe a part. Out: how long each took, told as it comes. `probes` holds the ways to ask, `display` shows it.

mod display;
pub mod probes;

use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};

pub use display::Display;
pub use probes::Probe;

/// How often a part that is not ready is asked again.
const LOOK: Duration = Duration::from_millis(20);

/// After which it is worth a word that something does not become ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// A part that has become ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    pub name: &'static str,
    pub after: Duration,
}

/// Who is told how it goes.
pub trait Listener {
    fn came(&mut self, part: Part, waiting: &[&'static str]);
    fn done(&mut self, took: Duration);
}

/// Asks all probes until each has succeeded once.
pub async fn wait(probes: Vec<Probe>, begun: Instant, listener: &mut impl Listener) -> Vec<Part> {
    let mut waiting: Vec<&'static str> = probes.iter().map(|probe| probe.name).collect();
    let mut asked: FuturesUnordered<_> = probes.into_iter().map(|probe| until_ready(probe, begun)).collect();
    let mut parts = Vec::new();
    let mut patience = tokio::time::interval_at(tokio::time::Instant::now() + PATIENCE, PATIENCE);
    while !asked.is_empty() {
        let part = tokio::select! {
            Some(part) = asked.next() => part,
            _ = patience.tick() => {
                tracing::warn!(
                    waiting = waiting.join(", "),
                    "not ready after {:.0?}; the log and `knarr check` may say why",
                    begun.elapsed()
                );
                continue;
            }
        };
        waiting.retain(|name| *name != part.name);
        listener.came(part, &waiting);
        parts.push(part);
    }
    listener.done(begun.elapsed());
    parts
}

async fn until_ready(probe: Probe, begun: Instant) -> Part {
    while !(probe.ask)().await {
        tokio::time::sleep(LOOK).await;
    }
    Part { name: probe.name, after: begun.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Told(Vec<(&'static str, usize)>, bool);

    impl Listener for Told {
        fn came(&mut self, part: Part, waiting: &[&'static str]) {
            self.0.push((part.name, waiting.len()));
        }

        fn done(&mut self, _took: Duration) {
            self.1 = true;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_part_is_told_of_when_it_comes() {
        let after = |name: &'static str, asks: u32| {
            let asked = Arc::new(AtomicU32::new(0));
            Probe::new(name, move || {
                let asked = Arc::clone(&asked);
                async move { asked.fetch_add(1, Ordering::Relaxed) >= asks }
            })
        };
        let mut told = Told::default();
        let parts =
            wait(vec![after("slow", 5), after("quick", 0), after("middle", 2)], Instant::now(), &mut told).await;
        assert_eq!(told.0, [("quick", 2), ("middle", 1), ("slow", 0)]);
        assert!(told.1 && parts.len() == 3);
    }
}
