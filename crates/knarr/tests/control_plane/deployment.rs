//! A Deployment on a control plane without nodes, with the real kubectl.

use crate::support::{ControlPlane, wait_for};

#[test]
fn a_deployment_becomes_pods_that_wait_for_a_node() {
    let plane = ControlPlane::start();
    let names = plane.kubectl(&["get", "namespaces", "-o", "name"]).expect("namespaces are listed");
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        assert!(names.contains(&format!("namespace/{namespace}")), "{names}");
    }

    plane.kubectl(&["create", "deployment", "web", "--image=nginx"]).expect("a deployment is created");
    plane.kubectl(&["scale", "deployment", "web", "--replicas=3"]).expect("it is scaled");
    let pods = || plane.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]).unwrap_or_default();
    wait_for("three pods", || pods().lines().count() == 3);
    let reasons = || {
        let path = "jsonpath={.items[*].status.conditions[?(@.type==\"PodScheduled\")].message}";
        plane.kubectl(&["get", "pods", "-o", path]).unwrap_or_default()
    };
    wait_for("the scheduler to say why they wait", || reasons().contains("no nodes available to schedule pods"));

    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
    let instance = format!("default-scheduler-{}", host.trim());
    let instances = || {
        let path = "jsonpath={.items[?(@.reason==\"FailedScheduling\")].reportingInstance}";
        plane.kubectl(&["get", "events.events.k8s.io", "-o", path]).unwrap_or_default()
    };
    wait_for("events that name the scheduler and its host", || instances().split(' ').any(|found| found == instance));

    // Controllers and scheduler are separate processes here, and upload their journey events.
    let journal = || plane.kubectl(&["get", "--raw", "/journey"]).unwrap_or_default();
    for event in ["\"step\":\"reconciled\",\"object\":\"deployments/default/web\"", "\"step\":\"unschedulable\""] {
        wait_for(&format!("the journal to hold {event}"), || journal().contains(event));
    }

    plane.kubectl(&["delete", "deployment", "web"]).expect("it is deleted");
    wait_for("its pods to go", || pods().is_empty());
}

#[test]
fn wrong_input_is_refused_with_the_reason() {
    let plane = ControlPlane::start();
    let refused = plane.kubectl(&["create", "configmap", "Bad_Name"]).expect_err("the name is wrong");
    assert!(refused.contains("a lowercase RFC 1123 subdomain must consist of"), "{refused}");
    let missing = plane.kubectl(&["get", "pod", "none"]).expect_err("there is no such pod");
    assert_eq!(missing, "Error from server (NotFound): pods \"none\" not found");
}
