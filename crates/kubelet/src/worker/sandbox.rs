//! Prepares a pod for its containers: cgroup and volumes, then the sandbox.

use k8s_openapi::api::core::v1::Pod;
use knarr_cri::messages::{PodSandbox, PodSandboxFilter};

use crate::container::hosts::fitting_hostname;
use crate::container::sandbox::sandbox_config;
use crate::container::user_namespace;
use crate::context::Context;
use crate::journey_events;
use crate::pod;
use crate::private;
use crate::runtime::{EventHandler, Sandbox, label, observe_sandbox};
use crate::volumes::{self, MountedVolumes};

/// Why a pod's volumes are not mounted.
pub struct MountFailure {
    pub message: String,
    /// The volumes that are not mounted, and those of them that the control plane has not attached.
    pub unmounted: Vec<String>,
    pub unattached: Vec<String>,
    /// One is not attached because the node has as many as its driver can attach.
    pub limit_exceeded: bool,
}

impl MountFailure {
    /// Nothing failed, and the worker is notified when it can go on.
    pub fn waits(&self) -> bool {
        !self.unmounted.is_empty() && self.unattached.len() == self.unmounted.len()
    }

    /// The event message for volumes that are not mounted for a long time.
    pub fn timeout_message(&self) -> String {
        format!("Unable to attach or mount volumes: {}", self.missing())
    }

    /// Why the pod is rejected.
    pub fn limit_message(&self) -> String {
        format!("Node has reached its volume attachment limit, rejecting pod. {}", self.missing())
    }

    fn missing(&self) -> String {
        format!(
            "unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[]: context deadline exceeded",
            self.unmounted.join(" "),
            self.unattached.join(" ")
        )
    }
}

/// Creates the pod's cgroup and mounts its volumes. `first` means that the pod has none yet.
pub async fn mount_volumes(
    context: &Context,
    pod: &Pod,
    downward: &crate::downward_api::DownwardContext,
    objects: &crate::objects::Subscription,
    first: bool,
) -> Result<MountedVolumes, MountFailure> {
    let started = std::time::Instant::now();
    let ensured = context.cgroups.as_ref().map_or(Ok(()), |cgroups| cgroups.ensure(pod));
    let operation = [("operation_type", "create")];
    context.metrics.observe("kubelet_cgroup_manager_duration_seconds", &operation, started.elapsed());
    if let Err(error) = ensured {
        let message = format!("Failed to create the pod's cgroup: {error}");
        context.events.about_pod(pod, true, "FailedCreatePodContainer", message.clone());
        return Err(MountFailure { message, unmounted: Vec::new(), unattached: Vec::new(), limit_exceeded: false });
    }
    let mounted = volumes::mount_all(context, pod, downward, objects, first).await;
    mounted.map_err(|failed| {
        let messages: Vec<String> = failed.iter().map(|(name, error)| error.event_message(name)).collect();
        let names = |selected: &dyn Fn(&volumes::VolumeError) -> bool| {
            let mut names: Vec<String> =
                failed.iter().filter(|(_, error)| selected(error)).map(|(name, _)| name.clone()).collect();
            names.sort();
            names
        };
        let (unmounted, unattached) = (names(&|_| true), names(&volumes::VolumeError::waits));
        let limit_exceeded = failed.iter().any(|(_, error)| error.exceeds_limit());
        MountFailure { message: messages.join("; "), unmounted, unattached, limit_exceeded }
    })
}

/// Creates the pod's sandbox, or adopts the one of a lost call.
pub async fn create_sandbox(
    context: &Context,
    pod: &Pod,
    attempt: u32,
    worker: EventHandler,
) -> Result<Sandbox, String> {
    let own_users = user_namespace::is_requested(pod);
    context.metrics.count("kubelet_started_pods_total", &[]);
    if own_users {
        context.metrics.count("kubelet_started_user_namespaced_pods_total", &[]);
    }
    let failed = |message: String| {
        context.metrics.count("kubelet_started_pods_errors_total", &[]);
        if own_users {
            context.metrics.count("kubelet_started_user_namespaced_pods_errors_total", &[]);
        }
        context.events.about_pod(
            pod,
            true,
            "FailedCreatePodSandBox",
            format!("Failed to create pod sandbox: {message}"),
        );
        message
    };
    let handler = super::runtime_class::handler(context, pod).await.map_err(failed)?;
    if own_users {
        prepare_user_namespace(context, pod, &handler).map_err(failed)?;
    }
    if !pod::host_network(pod) {
        fitting_hostname(pod, &context.settings.cluster_domain).map_err(failed)?;
    }
    context.dra.prepare(pod).await.inspect_err(|message| {
        let message = format!("Failed to prepare dynamic resources: {message}");
        context.events.about_pod(pod, true, "FailedPrepareDynamicResources", message);
    })?;
    let config = sandbox_config(pod, attempt, &context.settings, &context.node_dns, &context.cgroup_parent(pod));
    private::create_log_directory(config.log_directory.as_ref()).map_err(|error| failed(error.to_string()))?;
    let _turn = context.starts.turn().await;
    let step = journey_events::sandbox(pod);
    let started = std::time::Instant::now();
    let id = match context.runtime.run_pod_sandbox(config, &handler).await {
        Ok(id) => id,
        Err(error) => match find_sandbox(context, pod, attempt).await {
            Some(id) => id,
            None => {
                context.metrics.count("kubelet_run_podsandbox_errors_total", &[("runtime_handler", &handler)]);
                step.record("failed", error.rpc_message());
                return Err(failed(error.rpc_message()));
            }
        },
    };
    let labels = [("runtime_handler", handler.as_str())];
    context.metrics.observe("kubelet_run_podsandbox_duration_seconds", &labels, started.elapsed());
    context.index.insert(&id, worker);
    let sandbox = observe_sandbox(&context.runtime, &id).await.map_err(|error| failed(error.rpc_message()))?;
    step.record("address", sandbox.addresses.join(", "));
    Ok(sandbox)
}

/// Allocates the pod's range of users, if its runtime can use one.
fn prepare_user_namespace(context: &Context, pod: &Pod, handler: &str) -> Result<(), String> {
    if !context.runtime_features.read().of_handler(handler).user_namespaces {
        let who = match handler {
            "" => "runtime".to_string(),
            handler => format!("RuntimeClass handler \"{handler}\""),
        };
        return Err(format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces"));
    }
    user_namespace::ensure(&context.settings, pod).map_err(|error| error.to_string())?;
    Ok(())
}

/// A sandbox that the runtime finished creating after a previous process requested it and stopped. Its name is in use,
/// so no other can be created; if it exists it is adopted.
async fn find_sandbox(context: &Context, pod: &Pod, attempt: u32) -> Option<String> {
    let filter = PodSandboxFilter {
        label_selector: [(label::POD_UID.to_string(), pod::uid(pod).to_string())].into(),
        ..Default::default()
    };
    let all = context.runtime.list_pod_sandboxes(filter).await.ok()?;
    let same = |sandbox: &PodSandbox| sandbox.metadata.as_ref().is_some_and(|metadata| metadata.attempt == attempt);
    all.into_iter().find(same).map(|sandbox| sandbox.id)
}
