//! What users see when an essential component of a node panics: its process ends, and the next one finds everything running.
//! `KNARR_FAULT` injects the panics; `tests/supervision.rs` does so to the control plane.

use super::harness::{self, Cluster, IMAGE, wait_for};

/// Faults of components that end the process instead of being restarted, with the reason in the log.
const FATAL: [(&str, &str); 4] = [
    ("kubelet/server:running", "kubelet/server failed: it panicked: injected fault kubelet/server:running"),
    ("kubelet/server:return", "kubelet/server failed: it returned unexpectedly"),
    ("kubelet/pods:start", "kubelet/pods failed: it panicked: injected fault kubelet/pods:start"),
    (
        "kubelet/pods:handler",
        "kubelet/pods failed: its handler of Pod changes panicked: injected fault kubelet/pods:handler",
    ),
];

const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: web}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: IMAGE
    command: ["/bin/sh", "-c", "busybox mkdir /w; echo here > /w/index.html; exec busybox httpd -f -p 8080 -h /w"]
    readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
"#;

struct Faulty(Cluster);

impl Faulty {
    /// Starts the second node again, with these faults and no others.
    fn restart(&mut self, faults: &str) {
        self.0.nodes[1].stop();
        self.0.nodes[1].set_variable("KNARR_FAULT", faults);
        self.0.nodes[1].start();
    }
}

#[test]
fn a_node_whose_essential_component_panics_ends_and_its_pods_go_on() {
    if !harness::is_possible() {
        return;
    }
    let mut faulty = Faulty(Cluster::start(2));
    faulty.0.apply(&WEB.replace("NAME", "kept").replace("IMAGE", IMAGE));
    faulty.0.wait_for("the pod to be ready", || faulty.0.ready_pods("app=web") == 1);
    let container = ["get", "pod", "kept", "-o=jsonpath={.status.containerStatuses[0].containerID}"];
    let before = faulty.0.kubectl(&container);
    for (fault, message) in FATAL {
        faulty.restart(fault);
        let mut changes = 0;
        wait_for(&format!("the process to end after {fault}"), || {
            changes += 1;
            // What a handler would handle.
            let _ = faulty.0.try_kubectl(&["annotate", "pod", "kept", &format!("changes={changes}"), "--overwrite"]);
            !faulty.0.nodes[1].is_running()
        });
        assert!(faulty.0.nodes[1].log().contains(message), "{message}");
    }
    // systemd would start it again.
    faulty.0.nodes[1].kill();
    faulty.0.nodes[1].set_variable("KNARR_FAULT", "");
    faulty.0.nodes[1].start();
    faulty.0.wait_for_nodes(2);
    faulty.0.wait_for("the same container", || {
        faulty.0.ready_pods("app=web") == 1 && faulty.0.kubectl(&container) == before
    });
}
