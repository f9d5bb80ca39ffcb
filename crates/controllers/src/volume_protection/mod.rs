//! Protects claims that pods use, volumes that are bound and attributes classes that are referenced from deletion, by a
//! finalizer on each.

mod live_pods;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::{Change, WorkQueue, owner, pod, run_workers};
use kube::Api;
use kube::api::PostParams;

use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace};
use crate::error::{Error, Result, ignore_not_found};
use crate::volume_binder::{BY_CLAIM, index_pods_by_claim};
use live_pods::LivePods;

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const ATTRIBUTES_CLASS_FINALIZER: &str = "kubernetes.io/vac-protection";

pub async fn run_claims(context: Context) {
    let claims = context.informers.of::<PersistentVolumeClaim>();
    let pods = context.informers.of::<Pod>();
    index_pods_by_claim(&pods);
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let live = Arc::new(LivePods::default());
    let (on_claim, noted) = (queue.clone(), live.clone());
    claims.on_change(move |change| {
        let key = Key::of(&**change.latest());
        if matches!(change, Change::Deleted(_)) {
            return noted.forget(&key);
        }
        if change_of(&change.latest().metadata, CLAIM_FINALIZER) != FinalizerChange::Same {
            noted.queued(&key);
            on_claim.add(key);
        }
    });
    let (on_pod, noted, known) = (queue.clone(), live.clone(), claims.clone());
    pods.on_change(move |change| {
        let pod = change.latest();
        if matches!(change, Change::Deleted(_)) || pod::is_terminal(pod) || pod::is_terminating(pod) {
            for claim in claims_of(pod) {
                let key = Key::new(namespace(&**pod), claim);
                if known.get(&key.namespace, &key.name).is_some() {
                    noted.queued(&key);
                    on_pod.add(key);
                }
            }
        }
    });
    claims.synced().await;
    pods.synced().await;
    let waiting = queue.clone();
    run_workers(queue, 5, move |key: Key| {
        let (context, claims, pods) = (context.clone(), claims.clone(), pods.clone());
        let (live, waiting) = (live.clone(), waiting.clone());
        async move {
            let Some(claim) = claims.get(&key.namespace, &key.name) else { return Ok::<(), Error>(()) };
            let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &key.namespace);
            match change_of(&claim.metadata, CLAIM_FINALIZER) {
                FinalizerChange::Same => return Ok(()),
                FinalizerChange::Remove => {
                    if pods.by_index(BY_CLAIM, &key.to_string()).iter().any(|pod| uses(pod, &claim)) {
                        return Ok(());
                    }
                    // The cache may not yet hold a pod that was just bound to a node.
                    let current = live.of(&context.client, &key).await?;
                    if waiting.is_empty() {
                        live.clear();
                    }
                    if current.iter().any(|pod| uses(pod, &claim)) {
                        return Ok(());
                    }
                }
                FinalizerChange::Add => {}
            }
            write(&api, &claim, CLAIM_FINALIZER).await
        }
    })
    .await;
}

pub async fn run_volumes(context: Context) {
    let volumes = context.informers.of::<PersistentVolume>();
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let on_volume = queue.clone();
    volumes.on_change(move |change| {
        if !matches!(change, Change::Deleted(_))
            && change_of(&change.latest().metadata, VOLUME_FINALIZER) != FinalizerChange::Same
        {
            on_volume.add(name(&**change.latest()).to_owned());
        }
    });
    volumes.synced().await;
    run_workers(queue, 2, move |key: String| {
        let (context, volumes) = (context.clone(), volumes.clone());
        async move {
            let Some(volume) = volumes.get("", &key) else { return Ok::<(), Error>(()) };
            let bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
            match change_of(&volume.metadata, VOLUME_FINALIZER) {
                FinalizerChange::Same => Ok(()),
                FinalizerChange::Remove if bound => Ok(()),
                _ => write(&Api::<PersistentVolume>::all(context.client.clone()), &volume, VOLUME_FINALIZER).await,
            }
        }
    })
    .await;
}

pub async fn run_attributes_classes(context: Context) {
    let classes = context.informers.of::<VolumeAttributesClass>();
    let volumes = context.informers.of::<PersistentVolume>();
    let claims = context.informers.of::<PersistentVolumeClaim>();
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let on_class = queue.clone();
    classes.on_change(move |change| on_class.add(name(&**change.latest()).to_owned()));
    let on_volume = queue.clone();
    volumes.on_change(move |change| {
        let (before, after) = (change.previous().map(|old| volume_attributes(old)), volume_attributes(change.latest()));
        let gone = matches!(change, Change::Deleted(_)).then(|| after.clone());
        let lost = before.into_iter().chain(gone).flatten().filter(|class| gone_or(change, &after, class));
        lost.for_each(|class| on_volume.add(class));
    });
    let on_claim = queue.clone();
    claims.on_change(move |change| {
        let (before, after) = (change.previous().map(|old| claim_attributes(old)), claim_attributes(change.latest()));
        let gone = matches!(change, Change::Deleted(_)).then(|| after.clone());
        let lost = before.into_iter().chain(gone).flatten().filter(|class| gone_or(change, &after, class));
        lost.for_each(|class| on_claim.add(class));
    });
    classes.synced().await;
    volumes.synced().await;
    claims.synced().await;
    run_workers(queue, 1, move |key: String| {
        let (context, classes, volumes, claims) = (context.clone(), classes.clone(), volumes.clone(), claims.clone());
        async move {
            let Some(class) = classes.get("", &key) else { return Ok::<(), Error>(()) };
            let used = || {
                volumes.list().iter().any(|volume| volume_attributes(volume).contains(&key))
                    || claims.list().iter().any(|claim| claim_attributes(claim).contains(&key))
            };
            match change_of(&class.metadata, ATTRIBUTES_CLASS_FINALIZER) {
                FinalizerChange::Same => Ok(()),
                FinalizerChange::Remove if used() => Ok(()),
                _ => {
                    let api: Api<VolumeAttributesClass> = Api::all(context.client.clone());
                    write(&api, &class, ATTRIBUTES_CLASS_FINALIZER).await
                }
            }
        }
    })
    .await;
}

/// Whether the class is no longer referenced after the change.
fn gone_or<K>(change: &Change<K>, after: &[String], class: &String) -> bool {
    matches!(change, Change::Deleted(_)) || !after.contains(class)
}

/// Attributes classes of a volume.
fn volume_attributes(volume: &PersistentVolume) -> Vec<String> {
    let named = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    named.into_iter().filter(|name| !name.is_empty()).collect()
}

/// Attributes classes that a claim has, requests or is being changed to.
fn claim_attributes(claim: &PersistentVolumeClaim) -> Vec<String> {
    let requested = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.clone());
    let target =
        status.and_then(|status| status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone());
    [requested, current, target].into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

#[derive(Debug, PartialEq)]
enum FinalizerChange {
    Same,
    Add,
    Remove,
}

/// An existing object gets the finalizer; one being deleted may lose it.
fn change_of(meta: &ObjectMeta, finalizer: &str) -> FinalizerChange {
    let has = meta.finalizers.iter().flatten().any(|present| present == finalizer);
    match (meta.deletion_timestamp.is_some(), has) {
        (false, false) => FinalizerChange::Add,
        (true, true) => FinalizerChange::Remove,
        _ => FinalizerChange::Same,
    }
}

/// An update, not a patch, which the controllers' roles do not permit. It fails when the object has changed meanwhile.
async fn write<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned + kube::Resource<DynamicType = ()>,
{
    let mut changed = object.clone();
    let change = change_of(object.meta(), finalizer);
    let finalizers = changed.meta_mut().finalizers.get_or_insert_default();
    match change {
        FinalizerChange::Add => finalizers.push(finalizer.to_owned()),
        _ => finalizers.retain(|present| present != finalizer),
    }
    let name = object.meta().name.as_deref().unwrap_or("");
    ignore_not_found(api.replace(name, &PostParams::default(), &changed).await)?;
    Ok(())
}

fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claim = |volume: &k8s_openapi::api::core::v1::Volume| match (&volume.persistent_volume_claim, &volume.ephemeral)
    {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", name(pod), volume.name)),
        _ => None,
    };
    volumes.filter_map(claim).collect()
}

/// A pod uses a claim from scheduling until it is gone; a claim created for the pod, until the pod has terminated.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod::node_name(pod).is_none() {
        return false;
    }
    let shut_down = pod::is_terminating(pod) && pod.metadata.deletion_grace_period_seconds == Some(0);
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => source.claim_name == name(claim),
        (None, Some(_)) => {
            let made_for_it = owner::is_controlled_by(&claim.metadata, &pod.metadata);
            !shut_down && made_for_it && format!("{}-{}", name(pod), volume.name) == name(claim)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn finalizers_are_added_and_removed() {
        let meta = |value: Value| serde_json::from_value::<ObjectMeta>(value).unwrap();
        let leaving = "2026-01-01T00:00:00Z";
        for (value, desired) in [
            (json!({}), FinalizerChange::Add),
            (json!({"finalizers": [CLAIM_FINALIZER]}), FinalizerChange::Same),
            (json!({"finalizers": [CLAIM_FINALIZER], "deletionTimestamp": leaving}), FinalizerChange::Remove),
            (json!({"deletionTimestamp": leaving}), FinalizerChange::Same),
        ] {
            assert_eq!(change_of(&meta(value), CLAIM_FINALIZER), desired);
        }
    }

    #[test]
    fn a_pod_on_a_node_uses_its_claims() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "data", "namespace": "ns"}})).unwrap();
        let pod = |node: &str, volume: Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"},
                "spec": {"nodeName": node, "containers": [], "volumes": [volume]}}))
            .unwrap()
        };
        let named = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
        assert!(uses(&pod("n", named.clone()), &claim));
        assert!(!uses(&pod("", named), &claim));
        assert!(!uses(&pod("n", json!({"name": "v", "persistentVolumeClaim": {"claimName": "other"}})), &claim));
    }
}
