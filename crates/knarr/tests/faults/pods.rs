//! Pods that run through all faults: none is restarted or replaced.

use crate::harness::{IMAGE, wait_for};
use crate::servers::ThreeServers;

/// Name, UID and restarts of each pod, as the API shows them.
pub struct Pods {
    before: String,
}

const COUNT: usize = 4;

impl Pods {
    pub fn start(servers: &ThreeServers) -> Self {
        let replicas = format!("--replicas={COUNT}");
        let image = format!("--image={IMAGE}");
        servers.kubectl(0, &["create", "deployment", "lasting", &image, &replicas, "--", "sleep", "1000000"]);
        wait_for("the pods to be ready", || {
            let ready =
                servers.try_kubectl(0, &["get", "deployment", "lasting", "-o", "jsonpath={.status.readyReplicas}"]);
            ready.is_ok_and(|ready| ready == COUNT.to_string())
        });
        let pods = Pods { before: listed(servers) };
        assert_eq!(pods.before.lines().count(), COUNT, "{}", pods.before);
        pods
    }

    pub fn check(&self, servers: &ThreeServers) {
        if let Some(violation) = violation(&self.before, &listed(servers)) {
            panic!("{violation}");
        }
    }
}

/// The first pod that is not the one that it was.
fn violation(before: &str, now: &str) -> Option<String> {
    let gone = before.lines().find(|line| !now.lines().any(|other| other == *line));
    let new = now.lines().find(|line| !before.lines().any(|other| other == *line));
    (gone.is_some() || new.is_some()).then(|| {
        format!("pods were restarted or replaced: {} became {}", gone.unwrap_or("none"), new.unwrap_or("none"))
    })
}

fn listed(servers: &ThreeServers) -> String {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    servers.kubectl(0, &["get", "pods", "-l", "app=lasting", "-o", path])
}

#[test]
fn a_pod_that_was_restarted_replaced_or_deleted_is_found() {
    let before = "a uid-1 0\nb uid-2 0\n";
    assert_eq!(violation(before, "b uid-2 0\na uid-1 0\n"), None);
    for (now, text) in [
        ("a uid-1 1\nb uid-2 0\n", "a uid-1 0 became a uid-1 1"),
        ("a uid-1 0\nc uid-3 0\n", "b uid-2 0 became c uid-3 0"),
        ("a uid-1 0\n", "b uid-2 0 became none"),
        ("a uid-1 0\nb uid-2 0\nc uid-3 0\n", "none became c uid-3 0"),
    ] {
        let found = violation(before, now).unwrap_or_default();
        assert!(found.contains(text), "{found}");
    }
}
