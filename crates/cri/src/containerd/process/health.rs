//! Watches that a running containerd responds, and restarts it when it does not.

use std::path::Path;
use std::time::Duration;

use super::{Containerd, running};
use crate::Runtime;
use crate::containerd::orphans;

/// How many health checks pass between two checks for lost shims.
const CHECKS_PER_SHIM_CHECK: u32 = 2;

/// How the responses of a running containerd are watched.
#[derive(Clone, Copy, Debug)]
pub struct HealthChecks {
    /// Between two checks.
    pub interval: Duration,
    /// How long containerd may take to respond to a check.
    pub response_timeout: Duration,
    /// A containerd that has not responded for this long is restarted.
    pub unresponsive_timeout: Duration,
}

impl Default for HealthChecks {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            unresponsive_timeout: Duration::from_secs(60),
        }
    }
}

impl Containerd {
    /// Supervises the runtime for ever: restarts it when its process is gone, or lives and does not respond.
    pub async fn supervise(self, runtime: Runtime, health: HealthChecks) {
        let mut failures = 0;
        let mut responded = tokio::time::Instant::now();
        let mut inherited = orphans::Inherited::find(&self.config);
        let mut checks = 0;
        loop {
            tokio::time::sleep(health.interval).await;
            checks += 1;
            let response = match tokio::time::timeout(health.response_timeout, runtime.version()).await {
                Ok(response) => response.map(drop).map_err(|error| error.to_string()),
                Err(_) => Err("it did not respond in time".to_owned()),
            };
            match response {
                Ok(()) => {
                    failures = 0;
                    responded = tokio::time::Instant::now();
                    if checks % CHECKS_PER_SHIM_CHECK == 0 {
                        inherited.check(&runtime).await;
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(error, failures, "containerd does not respond");
                    if running(Path::new("/proc"), &self.file()).is_some() {
                        // It may be slow on a busy host. A second one on the same files would do harm.
                        if responded.elapsed() < health.unresponsive_timeout {
                            continue;
                        }
                        tracing::error!("containerd lives but has not responded for long: restarting it");
                        self.kill().await;
                        responded = tokio::time::Instant::now();
                    }
                    if let Err(error) = self.start(&runtime).await {
                        tracing::error!(%error, "containerd could not be restarted");
                    }
                    inherited = orphans::Inherited::find(&self.config);
                }
            }
        }
    }
}
