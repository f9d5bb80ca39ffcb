//! CronJobs: due and missed times, concurrency policies, suspension and history.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, condition, text};

const CONTROLLERS: &[&str] = &["cronjob-controller", "job-controller", "garbage-collector-controller"];
const PERIOD: i64 = 600;

fn cron_job(schedule: &str, more: Value) -> Value {
    let template = json!({"spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "image:1"}]}}}});
    let mut spec = json!({"schedule": schedule, "jobTemplate": template});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"}, "spec": spec})
}

/// A cluster with a CronJob that is due every ten minutes, for the first time about five minutes after the start.
struct Ticking {
    cluster: Cluster,
    /// The second of the ten minutes at which it is due.
    due: i64,
}

async fn with(kubelet: Kubelet, spec: Value) -> Ticking {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.set_kubelet(kubelet);
    let minute = (cluster.now().as_second() / 60 + 5).rem_euclid(10);
    cluster.create(cron_job(&format!("{minute}-59/10 * * * *"), spec)).await;
    cluster.until_quiet().await;
    Ticking { cluster, due: minute * 60 }
}

impl Ticking {
    /// Lets time pass until shortly after the next due time.
    async fn to_next_due_time(&self) {
        let left = (self.due - self.cluster.now().as_second()).rem_euclid(PERIOD);
        self.cluster.advance(Duration::from_secs(left.unsigned_abs() + 5)).await;
    }
}

fn is_finished(job: &Value) -> bool {
    ["Complete", "Failed"].iter().any(|kind| condition(job, kind)["status"] == "True")
}

#[tokio::test(start_paused = true)]
async fn one_job_is_created_per_due_time() {
    let ticking = with(Kubelet::deciding(|_| Outcome::Succeeded), json!({})).await;
    let cluster = &ticking.cluster;
    assert!(cluster.list("Job").await.is_empty());
    for count in 1..=3 {
        ticking.to_next_due_time().await;
        cluster.until_list("Job", |jobs| jobs.len() == count && jobs.iter().all(is_finished)).await;
    }
    let cron = cluster.until("CronJob", "tick", |cron| cron["status"]["active"].is_null()).await;
    assert!(cron["status"]["lastSuccessfulTime"].is_string(), "{cron}");
}

/// How many jobs exist after each due time, with jobs that do not end.
#[tokio::test(start_paused = true)]
async fn concurrency_policies_allow_forbid_and_replace() {
    for policy in ["Allow", "Forbid", "Replace"] {
        let ticking = with(Kubelet::ready(), json!({"concurrencyPolicy": policy})).await;
        let cluster = &ticking.cluster;
        let mut last = String::new();
        for round in 1..=3 {
            ticking.to_next_due_time().await;
            let expected = if policy == "Allow" { round } else { 1 };
            let found = cluster.until_list("Job", |jobs| jobs.len() == expected).await;
            let name = text(&found[0]["metadata"]["name"]).to_owned();
            if policy != "Allow" && round > 1 {
                assert_eq!(name != last, policy == "Replace", "{policy}");
            }
            last = name;
            cluster
                .until("CronJob", "tick", |cron| cron["status"]["active"].as_array().map(Vec::len) == Some(expected))
                .await;
        }
    }
}

/// A controller that was away for longer than some periods starts the latest run only, and none that is too late.
#[tokio::test(start_paused = true)]
async fn missed_times_start_one_job_unless_the_deadline_passed() {
    for (deadline, expected) in [(Value::Null, 1), (json!(3600), 1), (json!(30), 0)] {
        let ticking = with(Kubelet::ready(), json!({"suspend": true, "startingDeadlineSeconds": deadline})).await;
        let cluster = &ticking.cluster;
        for _ in 0..3 {
            ticking.to_next_due_time().await;
        }
        cluster.advance(Duration::from_secs(60)).await;
        assert!(cluster.list("Job").await.is_empty(), "it is suspended");
        cluster.patch("CronJob", "tick", json!({"spec": {"suspend": false}})).await;
        cluster.until_list("Job", |jobs| jobs.len() == expected).await;
        cluster.until_quiet().await;
        assert_eq!(cluster.list("Job").await.len(), expected, "{deadline}");
        ticking.to_next_due_time().await;
        cluster.until_list("Job", |jobs| jobs.len() == expected + 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn finished_jobs_beyond_the_history_limits_are_deleted() {
    let limits = json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0});
    let ticking = with(Kubelet::deciding(|_| Outcome::Succeeded), limits).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        ticking.to_next_due_time().await;
        let jobs = ticking.cluster.until_list("Job", |jobs| jobs.len() == 1 && jobs.iter().all(is_finished)).await;
        seen.push(text(&jobs[0]["metadata"]["name"]).to_owned());
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "the newest is kept: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_schedule_of_another_time_zone_is_followed() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.set_kubelet(Kubelet::ready());
    // Kiritimati is fourteen hours ahead, without daylight saving time.
    let there = cluster.now() + SignedDuration::from_hours(14) + SignedDuration::from_mins(30);
    let schedule = format!("{} {} * * *", there.strftime("%-M"), there.strftime("%-H"));
    cluster.create(cron_job(&schedule, json!({"timeZone": "Pacific/Kiritimati"}))).await;
    cluster.advance(Duration::from_secs(28 * 60)).await;
    assert!(cluster.list("Job").await.is_empty());
    cluster.advance(Duration::from_secs(4 * 60)).await;
    cluster.until_list("Job", |jobs| jobs.len() == 1).await;
}

/// Old jobs that a policy keeps from being deleted keep no new one from being started.
#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_be_deleted_stops_nothing() {
    let limit = json!({"successfulJobsHistoryLimit": 0});
    let ticking = with(Kubelet::deciding(|_| Outcome::Succeeded), limit).await;
    let cluster = &ticking.cluster;
    let rule = json!({"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["jobs"]});
    let policy = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]});
    let binding = json!({"policyName": "keep", "validationActions": ["Deny"]});
    for (kind, plural, spec) in [
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies", policy),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", binding),
    ] {
        let api = "admissionregistration.k8s.io/v1";
        let object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": "keep"}, "spec": spec});
        let (code, created) =
            cluster.request("POST", &format!("/apis/{api}/{plural}"), "application/json", &object).await;
        assert_eq!(code, 201, "{created}");
    }
    cluster.until_quiet().await;
    for count in 1..=2 {
        ticking.to_next_due_time().await;
        cluster.until_list("Job", |jobs| jobs.len() == count && jobs.iter().all(is_finished)).await;
    }
}
