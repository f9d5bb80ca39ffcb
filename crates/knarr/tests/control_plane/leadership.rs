//! Leader election: one of two replicas acts, and the other takes over when it dies.

use std::time::{Duration, Instant};

use knarr_client::k8s_openapi::api::coordination::v1::Lease;
use knarr_client::kube::{Api, Client};
use nix::sys::signal::Signal;

use crate::support::{ControlPlane, TIMEOUT, until};

/// Shorter intervals than the defaults, so that the test is short; yet a busy host must be able to renew in time.
const PACE: [&str; 4] = [
    "--leader-elect",
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=500ms",
];

async fn holder(client: &Client, lease: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let lease = leases.get_opt(lease).await.ok()??;
    lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
}

/// The leader, once it is another than `before`.
async fn leader(client: &Client, lease: &str, before: Option<&str>) -> String {
    let is_new = |holder: &Option<String>| holder.is_some() && holder.as_deref() != before;
    until("another to lead", || holder(client, lease), is_new).await.expect("a leader")
}

fn pods_of(plane: &ControlPlane, name: &str) -> usize {
    let pods = plane.kubectl(&["get", "pods", "-l", &format!("app={name}"), "-o", "name"]).unwrap_or_default();
    pods.lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_takes_over_from_a_killed_leader() {
    for (command, lease) in [("controller-manager", "kube-controller-manager"), ("scheduler", "kube-scheduler")] {
        let mut plane = ControlPlane::api_server();
        let client = plane.client().await;
        let arguments: Vec<&str> = std::iter::once(command).chain(PACE).collect();
        plane.add("first", &arguments);
        let first = leader(&client, lease, None).await;
        plane.add("second", &arguments);
        let other = if command == "scheduler" { "controller-manager" } else { "scheduler" };
        plane.add("other", &[other]);
        assert_acts(&mut plane, &["first", "second"], "before");

        plane.kill("first");
        let killed = Instant::now();
        leader(&client, lease, Some(&first)).await;
        assert!(killed.elapsed() < Duration::from_secs(15), "{command} took {:?}", killed.elapsed());
        assert_acts(&mut plane, &["second"], "after");
        assert!(plane.ended("second").is_none(), "it goes on");
    }
}

/// A Deployment gets exactly its pods, and the scheduler reports why they wait. Replicas that lost their lease on a busy host
/// are restarted, as a supervisor would.
fn assert_acts(plane: &mut ControlPlane, competitors: &[&str], name: &str) {
    plane.kubectl(&["create", "deployment", name, "--image=nginx", "--replicas=5"]).expect("a deployment is created");
    crate::support::wait_for("pods", || {
        plane.revive(competitors);
        pods_of(plane, name) >= 5
    });
    let path = "jsonpath={.items[*].status.conditions[?(@.type==\"PodScheduled\")].reason}";
    crate::support::wait_for("the scheduler to speak", || {
        plane.revive(competitors);
        let label = format!("app={name}");
        let reasons = plane.kubectl(&["get", "pods", "-l", &label, "-o", path]).unwrap_or_default();
        reasons.split_whitespace().filter(|reason| *reason == "Unschedulable").count() == 5
    });
    assert_eq!(pods_of(plane, name), 5, "nobody acted twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_stops_when_it_wakes() {
    let mut plane = ControlPlane::api_server();
    let client = plane.client().await;
    let lease = "kube-controller-manager";
    let arguments: Vec<&str> = std::iter::once("controller-manager").chain(PACE).collect();
    plane.add("first", &arguments);
    let first = leader(&client, lease, None).await;
    plane.add("second", &arguments);
    plane.signal("first", Signal::SIGSTOP);
    let second = leader(&client, lease, Some(&first)).await;
    plane.signal("first", Signal::SIGCONT);
    let woken = Instant::now();
    let ended = loop {
        if let Some(ended) = plane.ended("first") {
            break ended;
        }
        assert!(woken.elapsed() < TIMEOUT, "a leader that lost its lease goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(!ended.success(), "it says that it lost");
    assert_eq!(holder(&client, lease).await, Some(second));
}
