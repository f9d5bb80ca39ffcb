//! Keeps priority and fairness up to date: the classifier, the seats, the built-in objects and the schemas' status.

mod ensure;
mod status;

use std::sync::Arc;
use std::time::Duration;

use crate::state::ApiServer;

/// How often seats are lent again.
const REBALANCE_INTERVAL: Duration = Duration::from_secs(10);

/// Runs until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    tokio::join!(status::run(server.clone()), ensure::run(server.clone()), lend(server));
}

async fn lend(server: Arc<ApiServer>) {
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(REBALANCE_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        server.backend.fairness.rebalance(&*server.backend.objects);
    }
}
