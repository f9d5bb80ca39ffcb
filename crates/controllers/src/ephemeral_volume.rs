//! Creates the claims of pods with ephemeral volumes; the pod owns them, so they are deleted with it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::{Change, WorkQueue, owner, pod, run_workers};
use kube::Api;
use kube::api::PostParams;

use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace};
use crate::error::{Error, is_already_there, message, namespace_terminating};

pub async fn run(context: Context) {
    let pods = context.informers.of::<Pod>();
    let claims = context.informers.of::<PersistentVolumeClaim>();
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_pod = queue.clone();
    pods.on_change(move |change| {
        if let Change::Added(pod) = change
            && !pod::is_terminating(pod)
            && volumes(pod).next().is_some()
        {
            on_pod.add(Key::of(&**pod));
        }
    });
    let (on_claim, known) = (queue.clone(), pods.clone());
    claims.on_change(move |change| {
        // A conflicting claim of the same name is gone.
        if let Change::Deleted(claim) = change {
            for pod in known.by_index(crate::volume_binder::BY_CLAIM, &Key::of(&**claim).to_string()) {
                on_claim.add(Key::of(&*pod));
            }
        }
    });
    crate::volume_binder::index_pods_by_claim(&pods);
    pods.synced().await;
    claims.synced().await;
    let recorder = context.recorder("ephemeral_volume");
    let workers = context.settings.concurrent_syncs.of("concurrent-ephemeralvolume-syncs");
    run_workers(queue, workers, move |key: Key| {
        let (context, pods, claims, recorder) = (context.clone(), pods.clone(), claims.clone(), recorder.clone());
        async move {
            let Some(pod) = pods.get(&key.namespace, &key.name) else { return Ok(()) };
            if pod::is_terminating(&pod) {
                return Ok(());
            }
            let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &key.namespace);
            for (volume, claim) in volumes(&pod).filter_map(|volume| Some((&volume.name, desired(&pod, volume)?))) {
                match claims.get(&key.namespace, name(&claim)) {
                    Some(present) if owner::is_controlled_by(&present.metadata, &pod.metadata) => continue,
                    Some(_) => {
                        let text = format!(
                            "PVC {}/{} was not created for pod {key} (pod is not owner)",
                            key.namespace,
                            name(&claim)
                        );
                        recorder.warning(&*pod, "FailedBinding", format!("ephemeral volume {volume}: {text}"));
                        return Err(Error::Later(text));
                    }
                    None => {}
                }
                match api.create(&PostParams::default(), &claim).await {
                    Err(error) if is_already_there(&error) || namespace_terminating(&error) => {}
                    Err(error) => {
                        let text =
                            format!("ephemeral volume controller: create PVC {}: {}", name(&claim), message(&error));
                        recorder.warning(&*pod, "FailedToCreatePVC", text);
                        return Err(error.into());
                    }
                    Ok(_) => {}
                }
            }
            Ok(())
        }
    })
    .await;
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let all = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    all.filter(|volume| volume.ephemeral.as_ref().is_some_and(|source| source.volume_claim_template.is_some()))
}

fn desired(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let meta = template.metadata.clone().unwrap_or_default();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", name(pod), volume.name)),
            namespace: Some(namespace(pod).to_owned()),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![owner::controller_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_are_named_after_pod_and_volume() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "data", "ephemeral": {
                "volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}}}]}
        }))
        .unwrap();
        let claims: Vec<_> = volumes(&pod).filter_map(|volume| desired(&pod, volume)).collect();
        assert_eq!(claims.len(), 1);
        assert_eq!(name(&claims[0]), "p-data");
        assert!(owner::is_controlled_by(&claims[0].metadata, &pod.metadata));
        assert_eq!(claims[0].metadata.labels.as_ref().unwrap()["a"], "b");
    }
}
