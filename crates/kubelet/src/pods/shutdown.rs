//! Terminates all pods when the host shuts down.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::{Pods, is_finished};
use crate::pod;
use crate::settings::ShutdownPeriod;
use crate::worker::state::Termination;
use crate::worker::{Handle, Message};

const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long to wait until the API server has the final status of all pods.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time beyond its grace period in which a pod is killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

impl Pods {
    /// Returns when no pod runs any more and the API server knows it: otherwise the pod would be started again after
    /// the reboot. Pods of low priority are terminated first.
    pub async fn terminate_for_shutdown(&self, periods: &[ShutdownPeriod]) {
        terminate_in_order(|| self.all(), periods).await;
    }
}

async fn terminate_in_order(workers: impl Fn() -> Vec<Handle>, periods: &[ShutdownPeriod]) {
    let mut periods = periods.to_vec();
    periods.sort();
    for (place, ShutdownPeriod { priority, grace }) in periods.iter().enumerate() {
        let of_class = || {
            let mut workers = workers();
            workers.retain(|worker| class_of(&worker.pod.lock(), &periods) == place);
            workers
        };
        of_class().iter().for_each(|worker| terminate(worker, *grace));
        if tokio::time::timeout(*grace + KILL_TIMEOUT, until_terminated(of_class)).await.is_err() {
            tracing::warn!(priority, "some pods did not terminate within their grace period");
        }
    }
}

/// The place of a pod's period: the last one whose priority is not above the pod's, or the first. Static pods without a
/// priority are critical.
fn class_of(pod: &Pod, periods: &[ShutdownPeriod]) -> usize {
    let usual = if pod::is_critical(pod) { pod::SYSTEM_CRITICAL } else { 0 };
    let priority = pod::spec(pod).priority.filter(|own| *own != 0).unwrap_or(usual);
    periods.iter().filter(|period| period.priority <= priority).count().saturating_sub(1)
}

fn terminate(worker: &Handle, grace: Duration) {
    let max = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
    let own = pod::grace_seconds(&worker.pod.lock());
    let termination = Termination::Stopped {
        reason: "Terminated".into(),
        message: MESSAGE.into(),
        grace: Some(own.min(max)),
        condition: Some(("TerminationByKubelet".into(), MESSAGE.into())),
    };
    // The worker may already have stopped.
    let _ = worker.sender.send(Message::Stop(Box::new(termination)));
}

async fn until_terminated(workers: impl Fn() -> Vec<Handle>) {
    let any = |is_so: fn(&Handle) -> bool| workers().iter().any(is_so);
    while any(is_running) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let reported = async {
        while any(|worker| !is_reported_finished(&worker.pod.lock())) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(REPORT_TIMEOUT, reported).await.is_err() {
        tracing::warn!("cannot report all terminated pods to the API server");
    }
}

/// Whether anything of a pod runs, including its sandbox. Until then its final status is not reported.
fn is_running(worker: &Handle) -> bool {
    let runtime = worker.runtime.lock();
    runtime.running().next().is_some() || runtime.sandboxes.iter().any(|sandbox| sandbox.ready)
}

/// Whether the API server has the final status of a pod. Static pods don't need it.
fn is_reported_finished(pod: &Pod) -> bool {
    pod::is_static(pod) || is_finished(pod)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::sync::mpsc::UnboundedReceiver;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::runtime::{ContainerView, RuntimePod, Sandbox, State};

    const NEVER: u64 = 1_000_000;

    fn pod(priority: i32, is_static: bool) -> Arc<Pod> {
        let source = if is_static { "file" } else { "api" };
        let pod = json!({ "metadata": { "name": "p", "annotations": { "kubernetes.io/config.source": source } },
            "spec": { "containers": [], "priority": priority, "terminationGracePeriodSeconds": 30 },
            "status": { "phase": "Running" } });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn running(pod: Arc<Pod>) -> (Handle, UnboundedReceiver<Message>) {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let container = ContainerView { state: State::Running, ..Default::default() };
        let sandbox = Sandbox { ready: true, ..Default::default() };
        let runtime = RuntimePod { sandboxes: vec![sandbox], containers: vec![container], ..Default::default() };
        let runtime = Arc::new(Mutex::new(runtime));
        let handle =
            Handle { sender, pod: Arc::new(Mutex::new(pod)), runtime, status: Arc::default(), volumes: Arc::default() };
        (handle, receiver)
    }

    /// A pod with these delays until its containers terminate, until its sandbox is stopped, and until the API knows
    /// it. Returns when it was asked to terminate and with which grace period.
    async fn ends(
        (handle, mut received): (Handle, UnboundedReceiver<Message>),
        [containers, sandbox, known_after]: [u64; 3],
    ) -> (Instant, i64) {
        let Some(Message::Stop(termination)) = received.recv().await else {
            panic!("the pod is not asked to terminate")
        };
        let Termination::Stopped { grace: Some(grace), .. } = *termination else { panic!("the pod has no grace") };
        let notified_at = Instant::now();
        tokio::spawn(async move {
            sleep(Duration::from_millis(containers)).await;
            handle.runtime.lock().containers.clear();
            sleep(Duration::from_millis(sandbox)).await;
            handle.runtime.lock().sandboxes[0].ready = false;
            sleep(Duration::from_millis(known_after)).await;
            let mut pod = handle.pod.lock();
            Arc::make_mut(&mut pod).status.get_or_insert_default().phase = Some("Failed".into());
        });
        (notified_at, grace)
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_until_terminated_pods_are_reported() {
        for (is_static, pace, expected) in [
            (false, [2_000, 0, 500], 2_500),
            (false, [0, 0, 9_900], 9_900),
            // On a slow host the sandbox takes longer than the containers.
            (false, [2_000, 11_000, 4_000], 17_000),
            // The API server no longer responds.
            (false, [2_000, 0, NEVER], 12_000),
            // A static pod needs no report.
            (true, [2_000, 0, NEVER], 2_000),
            // A process that can't be killed.
            (false, [NEVER, 0, 0], 21_000),
        ] {
            let one = running(pod(0, is_static));
            let handle = one.0.clone();
            let started = Instant::now();
            let pod = tokio::spawn(ends(one, pace));
            let grace = Duration::from_secs(20);
            let critical = if is_static { grace } else { Duration::ZERO };
            terminate_in_order(|| vec![handle.clone()], &ShutdownPeriod::with_critical(grace, critical)).await;
            let passed = started.elapsed().as_millis() as u64;
            assert!((expected..expected + 200).contains(&passed), "{pace:?}: {passed}");
            let (_, grace) = pod.await.expect("the pod was asked");
            assert_eq!(grace, 20);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn critical_pods_terminate_after_all_others_are_reported() {
        let ordinary = running(pod(0, false));
        let critical = running(pod(2_000_001_000, false));
        let handles = [ordinary.0.clone(), critical.0.clone()];
        let started = Instant::now();
        let ordinary = tokio::spawn(ends(ordinary, [2_000, 1_000, 1_000]));
        let critical = tokio::spawn(ends(critical, [1_000, 0, 100]));
        let periods = ShutdownPeriod::with_critical(Duration::from_secs(30), Duration::from_secs(10));
        terminate_in_order(|| handles.to_vec(), &periods).await;
        let whole = started.elapsed().as_millis();
        assert!((5_100..5_400).contains(&whole), "{whole}");
        let (received, grace) = ordinary.await.expect("a request");
        assert_eq!((received, grace), (started, 20));
        let (received, grace) = critical.await.expect("a request");
        assert_eq!(grace, 10);
        assert!(received - started >= Duration::from_secs(4));
    }

    #[test]
    fn periods_are_for_the_priorities_up_to_the_next() {
        let period = |priority| ShutdownPeriod { priority, grace: Duration::from_secs(1) };
        let periods = [period(0), period(1000), period(pod::SYSTEM_CRITICAL)];
        for (priority, is_static, expected) in [
            (-5, false, 0),
            (0, false, 0),
            (999, false, 0),
            (1000, false, 1),
            (1001, false, 1),
            (pod::SYSTEM_CRITICAL, false, 2),
            (pod::SYSTEM_CRITICAL + 1000, false, 2),
            (0, true, 2),
        ] {
            assert_eq!(class_of(&pod(priority, is_static), &periods), expected, "{priority} {is_static}");
        }
        assert_eq!(class_of(&pod(5, false), &[period(1000), period(2000)]), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_terminate_by_priority_with_the_period_of_their_own() {
        let pods = [10, 5000, -3].map(|priority| running(pod(priority, false)));
        let handles: Vec<Handle> = pods.iter().map(|(handle, _)| handle.clone()).collect();
        let tasks = pods.map(|one| tokio::spawn(ends(one, [1_000, 0, 0])));
        let period = |priority, seconds| ShutdownPeriod { priority, grace: Duration::from_secs(seconds) };
        // Sorted here, whatever order the configuration has.
        terminate_in_order(|| handles.clone(), &[period(1000, 20), period(0, 7), period(100, 9)]).await;
        let mut found = Vec::new();
        for task in tasks {
            found.push(task.await.expect("asked"));
        }
        let [(ordinary, first), (high, last), (low, lowest)] = found[..] else { panic!("three pods") };
        assert_eq!((first, last, lowest), (7, 20, 7));
        assert!(ordinary == low && high - ordinary >= Duration::from_secs(1));
    }
}
