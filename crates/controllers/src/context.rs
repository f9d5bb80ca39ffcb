//! What every controller is given.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use knarr_client::{EventRecorder, Informers};
use kube::Client;

use crate::clock::Clock;
use crate::settings::Settings;

#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub informers: Informers,
    pub settings: Arc<Settings>,
    pub clock: Clock,
}

impl Context {
    pub fn new(client: Client, settings: Settings) -> Self {
        let informers = Informers::new(client.clone()).reducing::<Pod>(reduce_pod);
        Self { informers, client, settings: Arc::new(settings), clock: Clock::system() }
    }

    /// The same with another clock.
    pub fn at(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Events as the named component, which is what people see in the event's source.
    pub fn recorder(&self, component: &str) -> EventRecorder {
        EventRecorder::new(self.client.clone(), component, None)
    }
}

/// Pods are by far the most numerous objects: only what some controller reads of them is kept. What is left of a container is
/// its name, ports, resources and kind; of its status, how often it was started and how it ended.
fn reduce_pod(pod: &mut Pod) {
    let container = |container: Container| Container {
        name: container.name,
        ports: container.ports,
        resources: container.resources,
        restart_policy: container.restart_policy,
        ..Container::default()
    };
    let status = |status: ContainerStatus| ContainerStatus {
        name: status.name,
        restart_count: status.restart_count,
        state: status.state.filter(|state| state.terminated.is_some()),
        ..ContainerStatus::default()
    };
    if let Some(spec) = &mut pod.spec {
        spec.containers = std::mem::take(&mut spec.containers).into_iter().map(container).collect();
        spec.init_containers = spec.init_containers.take().map(|all| all.into_iter().map(container).collect());
        spec.ephemeral_containers = None;
        spec.security_context = None;
        spec.dns_config = None;
        spec.image_pull_secrets = None;
        spec.topology_spread_constraints = None;
        spec.host_aliases = None;
    }
    if let Some(pod_status) = &mut pod.status {
        for statuses in [&mut pod_status.container_statuses, &mut pod_status.init_container_statuses] {
            *statuses = statuses.take().map(|all| all.into_iter().map(status).collect());
        }
        pod_status.ephemeral_container_statuses = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_controllers_read_of_pods_is_kept() {
        let mut pod: Pod = serde_json::from_value(json!({
            "spec": {"nodeName": "n", "tolerations": [{"key": "k"}], "containers": [
                {"name": "c", "image": "i", "env": [{"name": "A"}], "ports": [{"name": "web", "containerPort": 80}]}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "x", "ready": true,
                "restartCount": 3, "state": {"running": {}}}]}
        }))
        .unwrap();
        reduce_pod(&mut pod);
        let kept = serde_json::to_value(&pod).unwrap();
        assert_eq!(kept["spec"]["containers"], json!([{"name": "c", "ports": [{"name": "web", "containerPort": 80}]}]));
        assert_eq!(kept["status"]["containerStatuses"][0]["restartCount"], 3);
        assert_eq!((&kept["spec"]["nodeName"], &kept["spec"]["tolerations"][0]["key"]), (&json!("n"), &json!("k")));
    }
}
