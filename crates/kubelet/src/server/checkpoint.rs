//! `POST /checkpoint/NAMESPACE/POD/CONTAINER`: writes a checkpoint of a running container to an archive on the node.

use std::path::PathBuf;
use std::sync::Arc;

use http::{Response, StatusCode};
use k8s_openapi::jiff::Timestamp;
use knarr_cri::messages::CheckpointContainerRequest;
use serde_json::json;

use super::query::Query;
use super::{Body, Server, text};
use crate::pod;

pub async fn respond(
    server: &Arc<Server>,
    namespace: &str,
    name: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let Some(worker) = server.pods.find(namespace, name) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    if pod::find(&worker.pod.lock(), container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {container} does not exist"));
    }
    let Ok(timeout) = query.all("timeout").last().map_or(Ok(0), |value| value.parse()) else {
        return text(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter");
    };
    let id =
        worker.runtime.lock().running().find(|running| running.name == container).map(|running| running.id.clone());
    let directory = server.context.settings.plugin_root.join("checkpoints");
    let location = location(directory, namespace, name, container, Timestamp::now());
    let written = match id {
        None => Err(format!("container {container} not found")),
        Some(_) if timeout < 0 => Err("CheckpointContainer requires the timeout value to be > 0".to_owned()),
        Some(container_id) => write(server, container_id, &location, timeout).await,
    };
    match written {
        Ok(()) => super::json(&json!({ "items": [location] })),
        Err(reason) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("checkpointing of {namespace}/{name}/{container} failed ({reason})"),
        ),
    }
}

async fn write(server: &Server, container_id: String, location: &std::path::Path, timeout: i64) -> Result<(), String> {
    // Only root may read the memory of containers, which holds secrets.
    let directory = location.parent().unwrap_or(location);
    crate::private::create_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let location = location.to_string_lossy().into_owned();
    let request = CheckpointContainerRequest { container_id, location, timeout };
    server.context.runtime.checkpoint_container(request).await.map_err(|error| error.rpc_message())
}

/// The archive of a checkpoint. Names of pods and containers hold no slash.
fn location(directory: PathBuf, namespace: &str, name: &str, container: &str, now: Timestamp) -> PathBuf {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ");
    directory.join(format!("checkpoint-{name}_{namespace}-{container}-{now}.tar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_named_by_container_and_time() {
        let now = Timestamp::from_second(1_700_000_000).expect("a moment");
        assert_eq!(
            location("/var/lib/kubelet/checkpoints".into(), "ns", "web-0", "app", now),
            PathBuf::from("/var/lib/kubelet/checkpoints/checkpoint-web-0_ns-app-2023-11-14T22:13:20Z.tar")
        );
    }
}
