//! Jobs: completions, indexes, backoff, suspension, deadlines and their removal.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, condition, text};

const CONTROLLERS: &[&str] = &["job-controller", "ttl-after-finished-controller", "garbage-collector-controller"];
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

fn job(more: Value) -> Value {
    let containers = json!([{"name": "c", "image": "image:1"}]);
    let mut spec = json!({"template": {"spec": {"restartPolicy": "Never", "containers": containers}}});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": spec})
}

fn finished(kind: &'static str) -> impl Fn(&Value) -> bool {
    move |job| condition(job, kind)["status"] == "True"
}

fn index_of(pod: &Value) -> &str {
    text(&pod["metadata"]["annotations"][INDEX])
}

fn active(pods: &[Value]) -> usize {
    let is_active = |pod: &&Value| {
        !matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed")
            && pod["metadata"]["deletionTimestamp"].is_null()
    };
    pods.iter().filter(is_active).count()
}

async fn with(kubelet: Kubelet, spec: Value) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.set_kubelet(kubelet);
    cluster.create(job(spec)).await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn completions_are_counted_and_finalizers_removed() {
    let cluster = with(Kubelet::deciding(|_| Outcome::Succeeded), json!({"completions": 5, "parallelism": 2})).await;
    let done = cluster.until("Job", "work", finished("Complete")).await;
    assert_eq!(done["status"]["succeeded"], 5);
    assert_eq!(condition(&done, "SuccessCriteriaMet")["status"], "True");
    assert!(done["status"]["completionTime"].is_string());
    let pods = cluster.list("Pod").await;
    assert_eq!(pods.len(), 5);
    assert!(pods.iter().all(|pod| pod["metadata"]["finalizers"].is_null()), "{pods:?}");
}

#[tokio::test(start_paused = true)]
async fn no_more_pods_than_the_parallelism_are_active() {
    let cluster = with(Kubelet::ready(), json!({"completions": 6, "parallelism": 2})).await;
    cluster.until("Job", "work", |job| job["status"]["ready"] == 2).await;
    cluster.until_quiet().await;
    assert_eq!(active(&cluster.list("Pod").await), 2);
    cluster.patch("Job", "work", json!({"spec": {"parallelism": 4}})).await;
    cluster.until_list("Pod", |pods| active(pods) == 4).await;
    cluster.patch("Job", "work", json!({"spec": {"parallelism": 1}})).await;
    cluster.until_list("Pod", |pods| active(pods) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn every_index_succeeds_once() {
    let kubelet = Kubelet::deciding(|_| Outcome::Succeeded);
    let cluster = with(kubelet, json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"})).await;
    let done = cluster.until("Job", "work", finished("Complete")).await;
    assert_eq!(done["status"]["completedIndexes"], "0-3");
    let pods = cluster.list("Pod").await;
    let mut indexes: Vec<&str> = pods.iter().map(index_of).collect();
    indexes.sort_unstable();
    assert_eq!(indexes, ["0", "1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn one_failing_index_does_not_stop_the_others() {
    let kubelet = Kubelet::deciding(|pod| if index_of(pod) == "1" { Outcome::Failed(1) } else { Outcome::Succeeded });
    let spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1});
    let cluster = with(kubelet, spec).await;
    cluster.until("Job", "work", |job| job["status"]["failed"] == 1).await;
    cluster.advance(Duration::from_secs(30)).await;
    let failed = cluster.until("Job", "work", finished("Failed")).await;
    assert_eq!(condition(&failed, "Failed")["reason"], "FailedIndexes");
    assert_eq!((text(&failed["status"]["completedIndexes"]), text(&failed["status"]["failedIndexes"])), ("0,2", "1"));
}

/// Pods are retried after 10 s, 20 s, 40 s, until the limit is reached.
#[tokio::test(start_paused = true)]
async fn failures_are_retried_with_a_backoff_up_to_the_limit() {
    let cluster = with(Kubelet::deciding(|_| Outcome::Failed(1)), json!({"backoffLimit": 2})).await;
    cluster.until("Job", "work", |job| job["status"]["failed"] == 1).await;
    cluster.advance(Duration::from_secs(7)).await;
    assert_eq!(cluster.list("Pod").await.len(), 1, "the backoff is 10 s");
    cluster.advance(Duration::from_secs(5)).await;
    cluster.until("Job", "work", |job| job["status"]["failed"] == 2).await;
    cluster.advance(Duration::from_secs(14)).await;
    assert_eq!(cluster.list("Pod").await.len(), 2, "the backoff is 20 s");
    cluster.advance(Duration::from_secs(10)).await;
    let failed = cluster.until("Job", "work", finished("Failed")).await;
    assert_eq!(condition(&failed, "Failed")["reason"], "BackoffLimitExceeded");
    assert_eq!(failed["status"]["failed"], 3);
}

#[tokio::test(start_paused = true)]
async fn a_failure_policy_ignores_or_fails_by_exit_code() {
    let policy = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}}]});
    let spec = json!({"backoffLimit": 6, "podFailurePolicy": policy});
    let cluster = with(Kubelet::deciding(|_| Outcome::Failed(42)), spec).await;
    let failed = cluster.until("Job", "work", finished("Failed")).await;
    assert_eq!(condition(&failed, "Failed")["reason"], "PodFailurePolicy");
    assert_eq!(cluster.list("Pod").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_has_no_pods_and_starts_its_deadline_when_resumed() {
    let cluster = with(Kubelet::ready(), json!({"suspend": true, "activeDeadlineSeconds": 100})).await;
    cluster.until("Job", "work", |job| condition(job, "Suspended")["status"] == "True").await;
    cluster.advance(Duration::from_secs(300)).await;
    assert!(cluster.list("Pod").await.is_empty());
    cluster.patch("Job", "work", json!({"spec": {"suspend": false}})).await;
    cluster.until("Job", "work", |job| job["status"]["ready"] == 1).await;
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(cluster.get("Job", "work").await.unwrap()["status"]["active"], 1);
    cluster.patch("Job", "work", json!({"spec": {"suspend": true}})).await;
    cluster.until_list("Pod", <[Value]>::is_empty).await;
    let suspended = cluster.until("Job", "work", |job| condition(job, "Suspended")["status"] == "True").await;
    assert!(suspended["status"]["startTime"].is_null(), "{suspended}");
}

#[tokio::test(start_paused = true)]
async fn a_job_past_its_deadline_fails_and_ends_its_pods() {
    let cluster = with(Kubelet::ready(), json!({"activeDeadlineSeconds": 100})).await;
    cluster.until("Job", "work", |job| job["status"]["ready"] == 1).await;
    cluster.advance(Duration::from_secs(110)).await;
    let failed = cluster.until("Job", "work", finished("Failed")).await;
    assert_eq!(condition(&failed, "Failed")["reason"], "DeadlineExceeded");
    cluster.until_list("Pod", |pods| active(pods) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_is_deleted_with_its_pods_after_its_time_to_live() {
    let cluster = with(Kubelet::deciding(|_| Outcome::Succeeded), json!({"ttlSecondsAfterFinished": 60})).await;
    cluster.until("Job", "work", finished("Complete")).await;
    cluster.advance(Duration::from_secs(50)).await;
    assert!(cluster.get("Job", "work").await.is_some());
    cluster.advance(Duration::from_secs(15)).await;
    cluster.until_gone("Job", "work").await;
    cluster.until_list("Pod", <[Value]>::is_empty).await;
}
