//! Kills controllers and scheduler at random moments and restarts them: the result is the same as without kills.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use knarr_client::Change;
use knarr_client::Informers;
use knarr_client::informer::Object;
use knarr_client::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use knarr_client::k8s_openapi::api::batch::v1::Job;
use knarr_client::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use knarr_client::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use knarr_client::kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use crate::support::hollow::HollowNodes;
use crate::support::{ControlPlane, until};

const NAMESPACE: &str = "default";

/// Kills one of the components at random moments during a wait; afterwards the components get time to finish.
async fn disturbed<T>(plane: &mut ControlPlane, kills: usize, seed: u64, wait: impl Future<Output = T>) -> T {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut wait = std::pin::pin!(wait);
    for done in 0..kills {
        // From just started to long running.
        let pause = Duration::from_millis(random.random_range(20..900));
        if let Ok(over) = tokio::time::timeout(pause, &mut wait).await {
            assert!(done > 0, "it was over before anything was killed");
            return over;
        }
        plane.restart(if random.random_bool(0.7) { "controller-manager" } else { "scheduler" });
    }
    wait.await
}

/// Every object of a kind that ever existed, by UID, in its last state.
struct Witness<K: Object> {
    seen: Arc<Mutex<HashMap<String, Arc<K>>>>,
    /// UIDs in the order of deletion.
    gone: Arc<Mutex<Vec<String>>>,
    _informers: Informers,
}

impl<K: Object + Resource<DynamicType = ()>> Witness<K> {
    async fn of(client: &Client) -> Self {
        let informers = Informers::new(client.clone());
        let informer = informers.of::<K>();
        let (seen, gone) = (Arc::<Mutex<HashMap<_, _>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (note, note_gone) = (seen.clone(), gone.clone());
        informer.on_change(move |change: &Change<K>| {
            let object = change.latest();
            let uid = object.meta().uid.clone().unwrap_or_default();
            if matches!(change, Change::Deleted(_)) {
                note_gone.lock().push(uid.clone());
            }
            note.lock().insert(uid, object.clone());
        });
        informer.synced().await;
        Witness { seen, gone, _informers: informers }
    }

    fn all(&self) -> Vec<Arc<K>> {
        self.seen.lock().values().cloned().collect()
    }
}

fn deployment(image: &str, replicas: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": image}]}}},
    }))
    .expect("a deployment")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_survives_kills() {
    const REPLICAS: i32 = 200;
    let mut plane = ControlPlane::start();
    let client = plane.client().await;
    let _nodes = HollowNodes::start(client.clone(), 8).await;
    let witness = Witness::<Pod>::of(&client).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let rolled_out = |image: &'static str| {
        let deployments = deployments.clone();
        async move {
            let ask = || deployments.get("web");
            until("the rollout to end", ask, |response| {
                let Ok(found) = response else { return false };
                let (Some(status), Some(spec)) = (&found.status, &found.spec) else { return false };
                let is_current =
                    spec.template.spec.as_ref().is_some_and(|spec| spec.containers[0].image.as_deref() == Some(image));
                is_current
                    && status.observed_generation == found.metadata.generation
                    && [status.replicas, status.updated_replicas, status.available_replicas] == [Some(REPLICAS); 3]
            })
            .await
        }
    };
    deployments.create(&PostParams::default(), &deployment("one", REPLICAS)).await.expect("a deployment is created");
    disturbed(&mut plane, 4, 1, rolled_out("one")).await.expect("the deployment");
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}});
    deployments.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.expect("a new image is set");
    disturbed(&mut plane, 6, 2, rolled_out("two")).await.expect("the deployment");

    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), NAMESPACE);
    let sets = sets.list(&ListParams::default()).await.expect("replica sets").items;
    let replicas: BTreeSet<Option<i32>> =
        sets.iter().map(|set| set.spec.as_ref().and_then(|spec| spec.replicas)).collect();
    assert_eq!((sets.len(), replicas), (2, [Some(0), Some(REPLICAS)].into()), "one replica set a template");
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let current = until(
        "the old pods to go",
        || async { pods.list(&ListParams::default()).await },
        |pods| pods.as_ref().is_ok_and(|pods| pods.items.len() == REPLICAS as usize),
    );
    for pod in current.await.expect("pods").items {
        let owner = pod.owner_references().first().map(|owner| owner.uid.clone());
        assert!(sets.iter().any(|set| set.uid() == owner), "{} is an orphan", pod.name_any());
    }
    assert_created_once(&witness, &sets, REPLICAS as usize);
}

/// Each ReplicaSet created exactly as many pods as it needed.
fn assert_created_once(witness: &Witness<Pod>, sets: &[ReplicaSet], replicas: usize) {
    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    for pod in witness.all() {
        let owner = pod.owner_references().first().map(|owner| owner.name.clone()).unwrap_or_default();
        *made.entry(owner).or_default() += 1;
    }
    let expected: BTreeMap<String, usize> = sets.iter().map(|set| (set.name_any(), replicas)).collect();
    assert_eq!(made, expected, "pods made by replica set");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_indexed_job_survives_kills() {
    const COMPLETIONS: i32 = 200;
    let mut plane = ControlPlane::start();
    let client = plane.client().await;
    let _nodes = HollowNodes::start(client.clone(), 4).await;
    let witness = Witness::<Pod>::of(&client).await;
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": "count"},
        "spec": {"completions": COMPLETIONS, "parallelism": 25, "completionMode": "Indexed", "backoffLimit": 0, "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    }))
    .expect("a job");
    jobs.create(&PostParams::default(), &job).await.expect("a job is created");
    let complete = {
        let jobs = jobs.clone();
        async move {
            let is_complete = |job: &Job| {
                let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
                conditions.into_iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
            };
            until("the job to complete", || jobs.get("count"), |job| job.as_ref().is_ok_and(is_complete)).await
        }
    };
    let job = disturbed(&mut plane, 8, 3, complete).await.expect("the job");
    let status = job.status.unwrap_or_default();
    assert_eq!(status.completed_indexes.as_deref(), Some(format!("0-{}", COMPLETIONS - 1).as_str()));
    assert_eq!((status.succeeded, status.failed), (Some(COMPLETIONS), None));
    let mut indexes: Vec<usize> = witness.all().iter().filter_map(|pod| index_of(pod)).collect();
    indexes.sort_unstable();
    assert_eq!(indexes, (0..COMPLETIONS as usize).collect::<Vec<_>>(), "one pod an index");
    let is_tracked =
        |pod: &Pod| pod.finalizers().iter().any(|finalizer| finalizer == "batch.kubernetes.io/job-tracking");
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    until(
        "pods to be let go",
        || async { pods.list(&ListParams::default()).await },
        |pods| pods.as_ref().is_ok_and(|pods| !pods.items.iter().any(is_tracked)),
    )
    .await
    .expect("pods");
}

fn index_of(pod: &Pod) -> Option<usize> {
    pod.annotations().get("batch.kubernetes.io/job-completion-index")?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_collection_survives_kills() {
    const DEPENDENTS: usize = 2500;
    let mut plane = ControlPlane::api_server();
    plane.add("controller-manager", &["controller-manager"]);
    plane.add("scheduler", &["scheduler"]);
    let client = plane.client().await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let witness = Witness::<ConfigMap>::of(&client).await;
    let mut owners = BTreeMap::new();
    for (policy, count) in [("background", DEPENDENTS), ("foreground", DEPENDENTS), ("orphan", 200), ("kept", 200)] {
        let owner: ConfigMap = serde_json::from_value(json!({"metadata": {"name": policy}})).expect("a map");
        let owner = maps.create(&PostParams::default(), &owner).await.expect("an owner is created");
        let uid = owner.uid().unwrap_or_default();
        futures::stream::iter(0..count).for_each_concurrent(32, |number| own(&maps, policy, &uid, number)).await;
        owners.insert(policy, uid);
    }
    for (name, policy) in [
        ("background", PropagationPolicy::Background),
        ("foreground", PropagationPolicy::Foreground),
        ("orphan", PropagationPolicy::Orphan),
    ] {
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        maps.delete(name, &params).await.expect("an owner is deleted");
    }
    // What is left: orphans without an owner, and kept objects with theirs.
    let collected = {
        let maps = maps.clone();
        async move {
            until(
                "the garbage to go",
                || async { maps.list(&ListParams::default()).await },
                |maps| {
                    let Ok(maps) = maps else { return false };
                    let of = |owner: &str| {
                        maps.items.iter().filter(|map| map.labels().get("of").is_some_and(|of| of == owner)).count()
                    };
                    let is_there = |name: &str| maps.items.iter().any(|map| map.name_any() == name);
                    of("background") + of("foreground") == 0 && !is_there("foreground") && !is_there("orphan")
                },
            )
            .await
        }
    };
    let left = disturbed(&mut plane, 6, 4, collected).await.expect("config maps").items;
    let of = |owner: &str| -> Vec<&ConfigMap> {
        left.iter().filter(|map| map.labels().get("of").is_some_and(|of| of == owner)).collect()
    };
    assert_eq!((of("orphan").len(), of("kept").len()), (200, 200));
    assert!(of("orphan").iter().all(|map| map.owner_references().is_empty()), "orphans know no owner");
    assert!(of("kept").iter().all(|map| map.owner_references().len() == 1), "the others keep theirs");
    assert!(left.iter().any(|map| map.name_any() == "kept"));
    until("the last deletion to be seen", || async { witness.gone.lock().len() }, |gone| *gone >= 2 * DEPENDENTS + 3)
        .await;
    let gone = witness.gone.lock();
    let last =
        gone.iter().rposition(|uid| witness.seen.lock()[uid].labels().get("of").is_some_and(|of| of == "foreground"));
    let owner = gone.iter().position(|uid| *uid == owners["foreground"]);
    assert!(last < owner, "an owner deleted in the foreground goes last");
}

async fn own(maps: &Api<ConfigMap>, owner: &str, uid: &str, number: usize) {
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {
        "name": format!("{owner}-{number}"), "labels": {"of": owner},
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": true}],
    }}))
    .expect("a map");
    maps.create(&PostParams::default(), &map).await.expect("a dependent is created");
}
