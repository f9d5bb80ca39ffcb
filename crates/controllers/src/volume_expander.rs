//! Records an event on claims that request a larger volume: an external driver expands it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_client::quantity::{self, Quantity};
use knarr_client::{Change, WorkQueue, run_workers};

use crate::Context;
use crate::common::Key;
use crate::common::key::uid;
use crate::error::Error;

const STORAGE: &str = "storage";

pub async fn run(context: Context) {
    let claims = context.informers.of::<PersistentVolumeClaim>();
    let volumes = context.informers.of::<PersistentVolume>();
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_claim = queue.clone();
    claims.on_change(move |change| {
        if let Change::Updated { old, new } = change
            && has_grown(old, new)
        {
            on_claim.add(Key::of(&**new));
        }
    });
    claims.synced().await;
    volumes.synced().await;
    let recorder = context.recorder("volume_expand");
    run_workers(queue, 1, move |key: Key| {
        let (claim, volumes, recorder) = (claims.get(&key.namespace, &key.name), volumes.clone(), recorder.clone());
        async move {
            let Some(claim) = claim.filter(|claim| wants_more(claim)) else { return Ok::<(), Error>(()) };
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
            let reference = volumes.get("", volume).and_then(|volume| volume.spec.as_ref()?.claim_ref.clone());
            if reference.and_then(|reference| reference.uid).as_deref() == Some(uid(&*claim)) {
                let text = "waiting for an external controller to expand this PVC";
                recorder.normal(&*claim, "ExternalExpanding", text);
            }
            Ok(())
        }
    })
    .await;
}

fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get(STORAGE).map(quantity::of)
}

/// Whether the request grew.
fn has_grown(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    requested(new).zip(requested(old)).is_some_and(|(new, old)| new > old)
}

/// Whether a bound claim requests more than its capacity.
fn wants_more(claim: &PersistentVolumeClaim) -> bool {
    let has = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get(STORAGE)).map(quantity::of);
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    bound && requested(claim).zip(has).is_some_and(|(desired, has)| desired > has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn growth_is_detected() {
        let claim = |asks: &str, has: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"name": "c"},
                "spec": {"resources": {"requests": {"storage": asks}}},
                "status": {"phase": "Bound", "capacity": {"storage": has}}}))
            .unwrap()
        };
        assert!(has_grown(&claim("1Gi", "1Gi"), &claim("2Gi", "1Gi")));
        assert!(!has_grown(&claim("1Gi", "1Gi"), &claim("1024Mi", "1Gi")));
        assert!(wants_more(&claim("2Gi", "1Gi")));
        assert!(!wants_more(&claim("1Gi", "2Gi")));
    }
}
