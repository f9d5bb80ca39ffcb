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
        assert_eq!(listed(servers), self.before, "pods were restarted or replaced");
    }
}

fn listed(servers: &ThreeServers) -> String {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    servers.kubectl(0, &["get", "pods", "-l", "app=lasting", "-o", path])
}
