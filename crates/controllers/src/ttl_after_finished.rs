//! Deletes finished jobs once their time to live has passed.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use knarr_client::{Change, WorkQueue, run_workers, time};
use kube::Api;
use kube::api::PropagationPolicy;

use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace};
use crate::common::requests::delete;
use crate::error::Error;
use crate::job::{COMPLETE, FAILED, true_condition};

pub async fn run(context: Context) {
    let jobs = context.informers.of::<Job>();
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_job = queue.clone();
    jobs.on_change(move |change| {
        let job = change.latest();
        if !matches!(change, Change::Deleted(_)) && expires_at(job).is_some() {
            on_job.add(Key::of(&**job));
        }
    });
    jobs.synced().await;
    let again = queue.clone();
    let workers = context.settings.concurrent_syncs.of("concurrent-ttl-after-finished-syncs");
    run_workers(queue, workers, move |key: Key| {
        let (context, jobs, again) = (context.clone(), jobs.clone(), again.clone());
        async move {
            let Some(job) = jobs.get(&key.namespace, &key.name) else { return Ok::<(), Error>(()) };
            let (Some(at), now) = (expires_at(&job), context.clock.now()) else { return Ok(()) };
            if at > now {
                again.add_after(key, time::until(now, at));
                return Ok(());
            }
            // The time to live may have been extended just now.
            let api: Api<Job> = Api::namespaced(context.client.clone(), namespace(&*job));
            let Some(fresh) = api.get_opt(name(&*job)).await? else { return Ok(()) };
            if expires_at(&fresh).is_some_and(|at| at <= context.clock.now()) {
                delete(&context.client, &fresh, Some(PropagationPolicy::Foreground)).await?;
            }
            Ok(())
        }
    })
    .await;
}

/// When a finished job is deleted, if it has a time to live and is not being deleted already.
fn expires_at(job: &Job) -> Option<Timestamp> {
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let finished = true_condition(job, COMPLETE).or_else(|| true_condition(job, FAILED))?;
    Some(time::after_seconds(&finished.last_transition_time?, seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn only_finished_jobs_expire() {
        let job = |ttl: Value, kind: &str| -> Job {
            let conditions = json!([{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            serde_json::from_value(
                json!({"spec": {"ttlSecondsAfterFinished": ttl, "template": {}}, "status": {"conditions": conditions}}),
            )
            .unwrap()
        };
        for (job, expected) in [
            (job(json!(100), "Complete"), Some("2026-01-01T00:01:40Z")),
            (job(json!(0), "Failed"), Some("2026-01-01T00:00:00Z")),
            (job(Value::Null, "Complete"), None),
            (job(json!(100), "Suspended"), None),
        ] {
            assert_eq!(expires_at(&job), expected.map(|at| at.parse().unwrap()));
        }
    }
}
