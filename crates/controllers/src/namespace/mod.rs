//! Deletes the content of terminating namespaces, pods first, reports in the status what is left, and removes the finalizer.

mod conditions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_client::{Informer, Metadata, WorkQueue, run_workers, time};
use kube::api::{DeleteParams, ListParams, PostParams, PropagationPolicy};
use kube::{Api, Client};

use crate::Context;
use crate::common::discovery::{Kind, discover};
use crate::common::key::name;
use crate::common::{Key, journey};
use crate::error::{Error, Result, has_code, ignore_not_found, is_conflict, is_not_found, message};

use conditions::{Outcome, updated};

/// The namespace's own finalizer; finalizers of others stay.
const FINALIZER: &str = "kubernetes";
/// Delay in which every API server learns that nothing may be created there any more.
const START_DELAY: Duration = Duration::from_millis(500);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const AFTER_FAILURE: Duration = Duration::from_secs(3);
const FINALIZER_WAIT_SECONDS: i64 = 15;
const PARALLEL_KINDS: usize = 16;

pub async fn run(context: Context) {
    let namespaces = context.informers.of::<Namespace>();
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let on_namespace = queue.clone();
    namespaces.on_change(move |change| {
        let namespace = change.latest();
        if namespace.metadata.deletion_timestamp.is_some() && has_finalizers(namespace) {
            on_namespace.add_after(name(&**namespace).to_owned(), START_DELAY);
        }
    });
    namespaces.synced().await;
    let pods = context.informers.of::<Pod>();
    pods.synced().await;
    let workers = context.settings.concurrent_syncs.of("concurrent-namespace-syncs");
    let again = queue.clone();
    run_workers(queue, workers, move |key: String| {
        let (context, pods, again) = (context.clone(), pods.clone(), again.clone());
        async move {
            let _step = journey::sync_span("namespace", "namespaces", &Key::new("", &*key));
            match empty(&context, &pods, &key).await {
                Ok(None) => {}
                Ok(Some(wait)) => again.add_after(key, wait),
                Err(error) => {
                    // Finalizers may be removed at any moment, and users wait for namespaces to be deleted: retries soon.
                    tracing::debug!(namespace = %key, %error, "cannot delete the content of a namespace; retrying");
                    again.add_after(key, AFTER_FAILURE);
                }
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}

fn has_finalizers(namespace: &Namespace) -> bool {
    namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref()).is_some_and(|finalizers| !finalizers.is_empty())
}

/// One attempt; returns when to retry if something remains.
async fn empty(context: &Context, pods: &Informer<Pod>, key: &str) -> Result<Option<Duration>> {
    let client = &context.client;
    let api: Api<Namespace> = Api::all(client.clone());
    let Some(mut namespace) = api.get_opt(key).await? else { return Ok(None) };
    if namespace.metadata.deletion_timestamp.is_none() {
        return Ok(None);
    }
    if namespace.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Terminating") {
        namespace.status.get_or_insert_default().phase = Some("Terminating".to_owned());
        namespace = api.replace_subresource("status", key, &PostParams::default(), &namespace).await?;
    }
    if !has_finalizers(&namespace) {
        return Ok(None);
    }
    let grace = grace_left(&pods.in_namespace(key), &namespace, context.clock.now());
    let outcome = delete_content(client, &namespace, grace).await;
    let changed = updated(namespace.status.clone().unwrap_or_default(), &outcome, context.clock.now());
    if namespace.status.as_ref() != Some(&changed) {
        namespace.status = Some(changed);
        match api.replace_subresource("status", key, &PostParams::default(), &namespace).await {
            Ok(written) => namespace = written,
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) if is_conflict(&error) => return Ok(Some(Duration::from_millis(50))),
            Err(error) => return Err(error.into()),
        }
    }
    if !outcome.failures.is_empty() || outcome.discovery.is_some() {
        let failures: Vec<&str> = outcome.failures.iter().chain(&outcome.discovery).map(String::as_str).collect();
        return Err(Error::Later(failures.join(", ")));
    }
    if outcome.wait_seconds > 0 || !outcome.remaining.is_empty() {
        return Ok(Some(RETRY_INTERVAL));
    }
    let finalizers = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut());
    if let Some(finalizers) = finalizers {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    let result = api.replace_subresource("finalize", key, &PostParams::default(), &namespace).await;
    ignore_not_found(result)?;
    Ok(None)
}

async fn delete_content(client: &Client, namespace: &Namespace, grace: i64) -> Outcome {
    let mut outcome = Outcome::default();
    let kinds = match discover(client).await {
        Ok(discovered) => {
            if !discovered.silent.is_empty() {
                let count = discovered.silent.len();
                let groups = discovered.silent.join(", ");
                let text = "unable to retrieve the complete list of server APIs";
                outcome.discovery = Some(format!(
                    "Discovery failed for some groups, {count} failing: {text}: {groups}: stale GroupVersion discovery"
                ));
            }
            discovered.kinds
        }
        Err(error) => {
            outcome.discovery = Some(message(&error));
            Vec::new()
        }
    };
    let deletable = |kind: &Kind| kind.namespaced && kind.can("delete") && kind.can("list");
    let (pods, others): (Vec<Kind>, Vec<Kind>) = kinds
        .into_iter()
        .filter(deletable)
        .partition(|kind| kind.resource.group.is_empty() && kind.resource.plural == "pods");
    // Other objects stay until the pods that may use them have terminated.
    for kind in &pods {
        outcome.add(kind, delete_kind(client, kind, namespace, grace).await);
    }
    outcome.pods_only = outcome.may_have_pods();
    if outcome.pods_only {
        return outcome;
    }
    let results: Vec<(Kind, Result<Remaining>)> = futures::stream::iter(others)
        .map(|kind| async move {
            let remaining_objects = delete_kind(client, &kind, namespace, 0).await;
            (kind, remaining_objects)
        })
        .buffer_unordered(PARALLEL_KINDS)
        .collect()
        .await;
    for (kind, remaining_objects) in results {
        outcome.add(&kind, remaining_objects);
    }
    outcome
}

/// What is left of a resource after its deletion was requested.
#[derive(Debug, Default, PartialEq)]
struct Remaining {
    count: usize,
    finalizers: BTreeMap<String, usize>,
    wait_seconds: i64,
    failure: Option<String>,
}

/// `grace` is how long objects of the resource may take to terminate.
async fn delete_kind(client: &Client, kind: &Kind, namespace: &Namespace, grace: i64) -> Result<Remaining> {
    let key = name(namespace);
    let api: Api<Metadata> = Api::namespaced_with(client.clone(), key, &kind.resource);
    let Some((count, before)) = list(&api).await? else { return Ok(Remaining::default()) };
    if count == 0 {
        return Ok(Remaining::default());
    }
    let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    // Objects that are already terminating are not deleted again.
    if before.iter().any(|object| object.metadata.deletion_timestamp.is_none()) || count > before.len() {
        if kind.can("deletecollection") {
            ignore_unsupported(delete_collection(client, &api, &params).await)?;
        } else {
            for object in &before {
                ignore_unsupported(api.delete(name(object), &params).await)?;
            }
        }
    }
    let Some((count, after)) = list(&api).await? else { return Ok(Remaining::default()) };
    Ok(remaining_objects(kind, key, count, &after, grace))
}

/// Deletes the whole collection. The response lists every deleted object, so it is read as a stream and discarded.
async fn delete_collection(client: &Client, api: &Api<Metadata>, params: &DeleteParams) -> kube::Result<()> {
    let request = kube::core::Request::new(api.resource_url())
        .delete_collection(params, &ListParams::default())
        .map_err(kube::Error::BuildRequest)?;
    let response = client.request_stream(request).await?;
    futures::io::copy_buf(std::pin::pin!(response), &mut futures::io::sink()).await.map_err(kube::Error::ReadEvents)?;
    Ok(())
}

/// How many objects there are, and the first of them: a namespace may hold very many.
async fn list(api: &Api<Metadata>) -> Result<Option<(usize, Vec<Metadata>)>> {
    const PAGE_SIZE: u32 = 500;
    let Some(list) = ignore_unsupported(api.list(&ListParams::default().limit(PAGE_SIZE)).await)? else {
        return Ok(None);
    };
    let beyond = list.metadata.remaining_item_count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    Ok(Some((list.items.len() + beyond, list.items)))
}

fn ignore_unsupported<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match ignore_not_found(result) {
        Err(error) if has_code(&error, 405) => Ok(None),
        result => result,
    }
}

fn remaining_objects(kind: &Kind, namespace: &str, count: usize, objects: &[Metadata], grace: i64) -> Remaining {
    let mut remaining_objects = Remaining { count, wait_seconds: grace, ..Remaining::default() };
    for finalizer in objects.iter().flat_map(|object| object.metadata.finalizers.iter().flatten()) {
        *remaining_objects.finalizers.entry(finalizer.clone()).or_default() += 1;
    }
    if remaining_objects.count > 0 && grace == 0 {
        if remaining_objects.finalizers.is_empty() {
            let resource = &kind.resource;
            remaining_objects.failure = Some(format!(
                "unexpected items still remain in namespace: {namespace} for gvr: {}/{}, Resource={}",
                resource.group, resource.version, resource.plural
            ));
        } else {
            remaining_objects.wait_seconds = FINALIZER_WAIT_SECONDS;
        }
    }
    remaining_objects
}

/// The longest grace period of running pods, unless the namespace has been terminating for longer than that.
fn grace_left(pods: &[Arc<Pod>], namespace: &Namespace, now: Timestamp) -> i64 {
    let unfinished = pods.iter().filter(|pod| !knarr_client::pod::is_terminal(pod));
    let grace = unfinished.filter_map(|pod| pod.spec.as_ref()?.termination_grace_period_seconds).max().unwrap_or(0);
    let deleted_for = namespace.metadata.deletion_timestamp.as_ref().map_or(0, |at| time::since(now, at).as_secs());
    if deleted_for >= grace { 0 } else { grace }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn grace_counts_from_the_namespace() {
        let pod = |grace: i64, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "spec": {"terminationGracePeriodSeconds": grace, "containers": []}, "status": {"phase": phase}
            }))
            .unwrap()
        };
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}))
                .unwrap();
        let pods = [pod(30, "Running"), pod(600, "Succeeded")].map(Arc::new);
        for (now, grace) in [("2026-01-01T00:00:10Z", 30), ("2026-01-01T00:00:30Z", 0)] {
            assert_eq!(grace_left(&pods, &namespace, now.parse().unwrap()), grace);
        }
    }
}
