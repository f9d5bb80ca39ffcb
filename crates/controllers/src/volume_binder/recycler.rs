//! Scrubs a released volume, so that another claim can use it.
//!
//! A pod mounts the volume and deletes its content. Events of the pod are repeated on the volume.

use std::convert::Infallible;
use std::pin::pin;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, Pod};
use knarr_client::events::{EventType, reference};
use knarr_client::{EventRecorder, decode, quantity};
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::common::key::name;
use crate::error::{ignore_not_found, is_already_there, message};

const NAMESPACE: &str = "default";
const IMAGE: &str = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6";
const SCRUB: &str = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";
const SECONDS_PER_GIBIBYTE: i64 = 30;

#[derive(Debug, thiserror::Error)]
pub(super) enum RecycleError {
    #[error("old recycler pod found, will retry later")]
    OldPod,
    #[error("failed to delete old recycler pod {NAMESPACE}/{pod}: {}", message(.error))]
    OldPodStays { pod: String, error: kube::Error },
    #[error("unexpected error creating recycler pod:  {}", message(.0))]
    Create(kube::Error),
    #[error("failed to recycle volume: {0}")]
    Scrub(String),
    #[error("failed to delete recycler pod: {}", message(.0))]
    Delete(kube::Error),
}

/// Whether volumes of this kind can be recycled at all.
pub(super) fn can_recycle(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.host_path.is_some() || spec.nfs.is_some())
}

/// Recycles the volume; returns when its pod has finished.
pub(super) async fn recycle(
    client: &Client,
    volume: &PersistentVolume,
    recorder: &EventRecorder,
) -> Result<(), RecycleError> {
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pod_name = format!("recycler-for-{}", name(volume));
    let pod = match api.create(&PostParams::default(), &pod_of(volume, &pod_name)).await {
        Ok(pod) => pod,
        // The pod may be from a previous run, or created by someone who wants to keep the volume: in either case it must be deleted.
        Err(error) if is_already_there(&error) => {
            let deleted = ignore_not_found(api.delete(&pod_name, &DeleteParams::default()).await);
            return Err(deleted
                .map_or_else(|error| RecycleError::OldPodStays { pod: pod_name, error }, |_| RecycleError::OldPod));
        }
        Err(error) => return Err(RecycleError::Create(error)),
    };
    let since = pod.metadata.resource_version.as_deref().unwrap_or("0");
    let scrubbed = tokio::select! {
        scrubbed = end_of(client, &pod_name, since) => scrubbed,
        never = pass_on_events(client, &pod_name, since, volume, recorder) => match never {},
    };
    let deleted = ignore_not_found(api.delete(&pod_name, &DeleteParams::default()).await);
    scrubbed.map_err(RecycleError::Scrub)?;
    deleted.map_err(RecycleError::Delete)?;
    Ok(())
}

/// How the pod finished.
async fn end_of(client: &Client, pod: &str, since: &str) -> Result<(), String> {
    // Typed, the events of pods would be decoded by code that nothing else uses.
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::erase::<Pod>(&()));
    let only = WatchParams::default().fields(&format!("metadata.name={pod}"));
    let changes = api.watch(&only, since).await.map_err(|error| error.to_string())?;
    let mut changes = pin!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                if let Some(outcome_of) = outcome(&pod) {
                    return outcome_of;
                }
            }
            Ok(WatchEvent::Deleted(_)) => return Err("recycler pod was deleted".to_owned()),
            Ok(WatchEvent::Bookmark(_)) => {}
            Ok(WatchEvent::Error(_)) | Err(_) => return Err("recycler pod watcher failed".to_owned()),
        }
    }
    Err(format!("recycler pod \"{pod}\" watch channel had been closed"))
}

fn outcome(pod: &DynamicObject) -> Option<Result<(), String>> {
    let status = &pod.data["status"];
    match status["phase"].as_str()? {
        "Succeeded" => Some(Ok(())),
        "Failed" => {
            let message = status["message"].as_str().filter(|message| !message.is_empty());
            Some(Err(message.unwrap_or("pod failed, pod.Status.Message unknown").to_owned()))
        }
        _ => None,
    }
}

/// Repeats the pod's events on the volume until it is dropped.
async fn pass_on_events(
    client: &Client,
    pod: &str,
    since: &str,
    volume: &PersistentVolume,
    recorder: &EventRecorder,
) -> Infallible {
    let api: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    let about_it = WatchParams::default().fields(&format!("involvedObject.name={pod}"));
    match api.watch(&about_it, since).await {
        Ok(events) => {
            let mut events = pin!(events);
            while let Some(event) = events.next().await {
                if let Ok(WatchEvent::Added(event)) = event {
                    let kind =
                        if event.type_.as_deref() == Some("Warning") { EventType::Warning } else { EventType::Normal };
                    let message = format!("Recycler pod: {}", event.message.unwrap_or_default());
                    recorder.about(reference(volume), kind, "RecyclerPod", message);
                }
            }
        }
        Err(error) => tracing::debug!(%error, pod, "cannot watch the events of a recycler pod"),
    }
    std::future::pending().await
}

fn pod_of(volume: &PersistentVolume, pod: &str) -> Pod {
    let spec = volume.spec.as_ref();
    let (source, min) = match spec.and_then(|spec| spec.nfs.as_ref()) {
        Some(nfs) => (json!({"nfs": {"server": nfs.server, "path": nfs.path}}), 300),
        None => {
            let path = spec.and_then(|spec| spec.host_path.as_ref()).map_or("", |source| &source.path);
            (json!({"hostPath": {"path": path}}), 60)
        }
    };
    let size = spec.and_then(|spec| spec.capacity.as_ref()?.get("storage")).map_or(0, quantity::value);
    let seconds = (size / (1 << 30) * SECONDS_PER_GIBIBYTE).max(min);
    let mut mounted = json!({"name": "vol"});
    if let (Value::Object(mounted), Value::Object(source)) = (&mut mounted, source) {
        mounted.extend(source);
    }
    let pod = json!({
        "metadata": {"name": pod, "namespace": NAMESPACE},
        "spec": {
            "activeDeadlineSeconds": seconds,
            "restartPolicy": "Never",
            "volumes": [mounted],
            "containers": [{
                "name": "pv-recycler",
                "image": IMAGE,
                "command": ["/bin/sh"],
                "args": ["-c", SCRUB],
                "volumeMounts": [{"name": "vol", "mountPath": "/scrub"}],
            }],
        },
    });
    decode::from_value(&pod).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycler_pod_has_a_deadline_by_volume_size() {
        for (size, source, seconds) in [
            ("1Gi", json!({"hostPath": {"path": "/x"}}), 60),
            ("10Gi", json!({"hostPath": {"path": "/x"}}), 300),
            ("1Gi", json!({"nfs": {"server": "s", "path": "/x"}}), 300),
            ("20Gi", json!({"nfs": {"server": "s", "path": "/x"}}), 600),
        ] {
            let mut volume = json!({"metadata": {"name": "v"}, "spec": source});
            volume["spec"]["capacity"] = json!({"storage": size});
            let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
            let spec = pod_of(&volume, "recycler-for-v").spec.unwrap();
            assert_eq!(spec.active_deadline_seconds, Some(seconds));
            let mounted = &spec.volumes.unwrap()[0];
            assert_eq!(mounted.nfs.is_some(), volume.spec.unwrap().nfs.is_some());
        }
    }

    #[test]
    fn a_recycler_pods_phase_is_the_outcome() {
        let outcome_of = |status: Value| outcome(&serde_json::from_value(json!({"status": status})).unwrap());
        assert_eq!(outcome_of(json!({"phase": "Running"})), None);
        assert_eq!(outcome_of(json!({"phase": "Succeeded"})), Some(Ok(())));
        assert_eq!(outcome_of(json!({"phase": "Failed", "message": "late"})), Some(Err("late".to_owned())));
        let unknown = "pod failed, pod.Status.Message unknown".to_owned();
        assert_eq!(outcome_of(json!({"phase": "Failed"})), Some(Err(unknown)));
    }
}
