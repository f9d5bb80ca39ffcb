//! Parts of the server that keep the status of objects up to date: how they follow the objects, and how they write.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use knarr_store::Notice;
use serde_json::Value;

use crate::request::Sender;
use crate::request::{GROUP_MASTERS, User};
use crate::state::ApiServer;

const RETRY: Duration = Duration::from_secs(1);

/// Runs a step once the server is ready, whenever a resource changes, and again where the step says that something
/// remains to be done; until the server stops.
pub async fn follow<Step, Settled>(server: Arc<ApiServer>, group: &str, plural: &'static str, step: Step)
where
    Step: Fn(Arc<ApiServer>) -> Settled,
    Settled: Future<Output = bool>,
{
    let Some(range) = server.kinds.load().stored(group, plural).map(|resource| resource.range("")) else { return };
    let mut stopping = server.stopping.clone();
    let mut ready = server.ready.clone();
    tokio::select! {
        ready = ready.wait_for(|ready| *ready) => if ready.is_err() { return },
        _ = stopping.wait_for(|stopping| *stopping) => return,
    }
    loop {
        let mut watch = match server.store.watch(&range, server.store.revision()) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(%error, plural, "cannot follow a resource");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        loop {
            let settled = step(server.clone()).await;
            tokio::select! {
                notice = watch.next() => match notice {
                    Some(Notice::Events(_) | Notice::Progress(_)) => {}
                    Some(Notice::Compacted) => break,
                    None => return,
                },
                () = tokio::time::sleep(RETRY), if !settled => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }
}

/// Applies to an object's status as one of the server's own parts; false when it should be tried again.
pub async fn apply(server: &Arc<ApiServer>, path: &str, user: &str, manager: &str, configuration: &Value) -> bool {
    let request = Request::patch(format!("{path}/status?fieldManager={manager}&force=true"))
        .header("content-type", "application/apply-patch+yaml")
        .body(Full::new(Bytes::from(configuration.to_string())));
    let Ok(request) = request else { return true };
    let sender = Sender::Trusted(Arc::new(User::named(user, &[GROUP_MASTERS])));
    let code = server.handle(request, &sender).await.status().as_u16();
    // One that is gone, or newer by now, comes back by the watch.
    matches!(code, 200..=299 | 404 | 409)
}
