//! Startup readiness: a server is ready when every component works as seen from outside, not when it has been started.
//!
//! Input: one probe per component. Output: the time each took, reported as it becomes ready. `probes` holds the kinds of
//! probes, `display` shows the progress.

mod display;
pub mod probes;

use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};

pub use display::Display;
pub use probes::Probe;

/// How often a component that is not ready is probed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of warnings about components that do not become ready.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

/// A component that has become ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadyComponent {
    pub name: &'static str,
    pub after: Duration,
}

/// Receives the progress.
pub trait ProgressListener {
    fn ready(&mut self, component: ReadyComponent, waiting: &[&'static str]);
    fn done(&mut self, took: Duration);
}

/// Runs all probes until each has succeeded once.
pub async fn wait(probes: &[Probe], started: Instant, listener: &mut impl ProgressListener) -> Vec<ReadyComponent> {
    let mut waiting: Vec<&'static str> = probes.iter().map(|probe| probe.name).collect();
    let mut probed: FuturesUnordered<_> = probes.iter().map(|probe| until_ready(probe, started)).collect();
    let mut components = Vec::new();
    let mut warnings = tokio::time::interval_at(tokio::time::Instant::now() + WARNING_INTERVAL, WARNING_INTERVAL);
    while !probed.is_empty() {
        let component = tokio::select! {
            Some(component) = probed.next() => component,
            _ = warnings.tick() => {
                tracing::warn!(
                    waiting = waiting.join(", "),
                    "not ready after {:.0?}; the log and `knarr check` may say why",
                    started.elapsed()
                );
                continue;
            }
        };
        waiting.retain(|name| *name != component.name);
        listener.ready(component, &waiting);
        components.push(component);
    }
    listener.done(started.elapsed());
    components
}

async fn until_ready(probe: &Probe, started: Instant) -> ReadyComponent {
    while !(probe.ask)().await {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    ReadyComponent { name: probe.name, after: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Reported(Vec<(&'static str, usize)>, bool);

    impl ProgressListener for Reported {
        fn ready(&mut self, component: ReadyComponent, waiting: &[&'static str]) {
            self.0.push((component.name, waiting.len()));
        }

        fn done(&mut self, _took: Duration) {
            self.1 = true;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_component_is_reported_when_it_is_ready() {
        let after = |name: &'static str, asks: u32| {
            let probed = Arc::new(AtomicU32::new(0));
            Probe::new(name, move || {
                let probed = Arc::clone(&probed);
                async move { probed.fetch_add(1, Ordering::Relaxed) >= asks }
            })
        };
        let mut reported = Reported::default();
        let components =
            wait(&[after("slow", 5), after("quick", 0), after("middle", 2)], Instant::now(), &mut reported).await;
        assert_eq!(reported.0, [("quick", 2), ("middle", 1), ("slow", 0)]);
        assert!(reported.1 && components.len() == 3);
    }
}
