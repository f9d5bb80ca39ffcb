//! Dependencies of every controller.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Volume};
use knarr_client::{EventRecorder, Informers};
use kube::Client;

use crate::clock::Clock;
use crate::settings::Settings;

/// Makes the client of a service account of kube-system, by the account's name.
pub type AccountClients = Arc<dyn Fn(&'static str) -> Client + Send + Sync>;

/// What controllers are built from. Cloning it is cheap.
#[derive(Clone)]
pub struct Context {
    /// Acts as the controller's own identity. Informers are shared and read as the controller manager.
    pub client: Client,
    pub informers: Informers,
    pub settings: Arc<Settings>,
    pub clock: Clock,
    accounts: Option<AccountClients>,
}

impl Context {
    /// A context with the system clock, in which all controllers act as the controller manager.
    pub fn new(client: Client, settings: Settings) -> Self {
        let informers = Informers::new(client.clone()).with_transform::<Pod>(reduce_pod);
        Self { informers, client, settings: Arc::new(settings), clock: Clock::system(), accounts: None }
    }

    /// Each controller acts as its own service account, with only the permissions that it needs.
    pub fn with_accounts(self, accounts: AccountClients) -> Self {
        Self { accounts: Some(accounts), ..self }
    }

    /// The context of a controller that acts as this account.
    pub(crate) fn acting_as(&self, account: &'static str) -> Self {
        let client = self.accounts.as_ref().map_or_else(|| self.client.clone(), |accounts| accounts(account));
        Self { client, ..self.clone() }
    }

    /// Replaces the clock.
    pub fn at(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// A recorder for events of the named component.
    pub fn recorder(&self, component: &str) -> EventRecorder {
        EventRecorder::new(self.client.clone(), component, None)
    }
}

/// Pods are by far the most numerous objects: the cache keeps only the fields that controllers read. A container keeps its
/// name, ports, resources and restart policy; its status keeps the restart count and the termination.
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
        spec.volumes = spec.volumes.take().map(|all| all.into_iter().filter(is_storage).collect());
    }
    if let Some(pod_status) = &mut pod.status {
        for statuses in [&mut pod_status.container_statuses, &mut pod_status.init_container_statuses] {
            *statuses = statuses.take().map(|all| all.into_iter().map(status).collect());
        }
        pod_status.ephemeral_container_statuses = None;
    }
    knarr_client::pod::shrink_to_fit(pod);
}

/// Whether a volume can refer to a claim, or to something that is attached. Every pod has another one, with its token.
fn is_storage(volume: &Volume) -> bool {
    volume.projected.is_none()
        && volume.config_map.is_none()
        && volume.secret.is_none()
        && volume.downward_api.is_none()
        && volume.empty_dir.is_none()
        && volume.host_path.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cached_pods_keep_what_controllers_read() {
        let mut pod: Pod = serde_json::from_value(json!({
            "spec": {"nodeName": "n", "tolerations": [{"key": "k"}],
                "volumes": [{"name": "token", "projected": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
                    {"name": "attached", "gcePersistentDisk": {"pdName": "d"}}, {"name": "scratch", "emptyDir": {}}],
                "containers": [
                {"name": "c", "image": "i", "env": [{"name": "A"}], "ports": [{"name": "web", "containerPort": 80}]}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "x", "ready": true,
                "restartCount": 3, "state": {"running": {}}}]}
        }))
        .unwrap();
        reduce_pod(&mut pod);
        let reduced = serde_json::to_value(&pod).unwrap();
        assert_eq!(
            reduced["spec"]["containers"],
            json!([{"name": "c", "ports": [{"name": "web", "containerPort": 80}]}])
        );
        let volumes: Vec<&str> =
            pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).map(|v| &*v.name).collect();
        assert_eq!(volumes, ["data", "attached"]);
        assert_eq!(reduced["status"]["containerStatuses"][0]["restartCount"], 3);
        assert_eq!(
            (&reduced["spec"]["nodeName"], &reduced["spec"]["tolerations"][0]["key"]),
            (&json!("n"), &json!("k"))
        );
    }
}
