//! Helpers of reconcilers inside the server that keep the status of objects up to date.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;

use crate::request::{GROUP_MASTERS, Sender, User};
use crate::resource_changes::ResourceChanges;
use crate::state::ApiServer;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs `reconcile` once the server is ready and whenever a resource changes, until the server stops. It is retried while
/// it returns false.
pub async fn on_change<Reconcile, Done>(server: Arc<ApiServer>, group: &str, plural: &'static str, reconcile: Reconcile)
where
    Reconcile: Fn(Arc<ApiServer>) -> Done,
    Done: Future<Output = bool>,
{
    let Some(range) = server.backend.kinds.load().stored(group, plural).map(|resource| resource.range("")) else {
        return;
    };
    let mut stopping = server.backend.stopping.clone();
    let mut ready = server.ready.clone();
    tokio::select! {
        ready = ready.wait_for(|ready| *ready) => if ready.is_err() { return },
        _ = stopping.wait_for(|stopping| *stopping) => return,
    }
    let Some(mut changes) = ResourceChanges::open(&server, range, plural).await else { return };
    loop {
        let is_done = reconcile(server.clone()).await;
        if !changes.next((!is_done).then_some(RETRY_INTERVAL)).await {
            return;
        }
    }
}

/// Applies to the status of an object as a user of the server itself; false if it must be retried.
pub async fn apply(server: &Arc<ApiServer>, path: &str, user: &str, manager: &str, configuration: &Value) -> bool {
    let request = Request::patch(format!("{path}/status?fieldManager={manager}&force=true"))
        .header("content-type", "application/apply-patch+yaml")
        .body(Full::new(Bytes::from(configuration.to_string())));
    let Ok(request) = request else { return true };
    let sender = Sender::Trusted(Arc::new(User::named(user, &[GROUP_MASTERS])));
    let code = server.handle(request, &sender).await.status().as_u16();
    // If the object is gone or newer, the watch reports it.
    matches!(code, 200..=299 | 404 | 409)
}
