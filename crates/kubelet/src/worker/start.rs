//! Starts one container, from its image to its post-start hook.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_cri::messages::{ContainerFilter, ContainerState, Image, PodSandboxConfig};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Message;
use super::hooks::{HookTarget, run_hook};
use crate::container::config::{ConfigInput, container_config};
use crate::container::env::environment;
use crate::container::hosts::{hosts_file, write_hosts_file};
use crate::container::mounts::ContainerMounts;
use crate::container::resources::linux_resources;
use crate::container::sandbox::sandbox_config;
use crate::container::security::container_security;
use crate::context::Context;
use crate::images::ImageFailure;
use crate::journey_events;
use crate::log_links;
use crate::objects::Subscription;
use crate::pod::{self, FoundContainer};
use crate::private;
use crate::runtime::{ContainerView, EventHandler, Sandbox, label, observe_container};
use crate::volumes::image::mount_for;
use crate::volumes::{Mounted, MountedVolumes};

/// Why a container failed to start, for its status.
#[derive(Debug)]
pub struct StartFailure {
    pub reason: String,
    pub message: String,
    pub retry_at: Instant,
    /// The container that the failed attempt left in the runtime.
    pub remains: Option<ContainerView>,
}

pub struct Start {
    pub context: Arc<Context>,
    pub pod: Arc<Pod>,
    pub name: String,
    pub sandbox: Sandbox,
    pub attempt: u32,
    pub volumes: Arc<MountedVolumes>,
    pub objects: Arc<Subscription>,
    /// The target container of an ephemeral one.
    pub target: Option<String>,
    pub worker: UnboundedSender<Message>,
    pub runtime_events: EventHandler,
    /// Cancelled when the pod terminates.
    pub terminating: CancellationToken,
}

const RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(10);
/// A slow or restarting runtime is queried again after this time.
const OBSERVE_RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// The id of a created container.
enum CreatedContainer {
    New(String),
    /// Started by an earlier attempt whose response was lost.
    Existing(String),
}

impl Start {
    pub async fn run(mut self) -> Result<ContainerView, StartFailure> {
        let Some(found) = pod::find(&self.pod, &self.name) else {
            return Err(self.failed("CreateContainerConfigError", "the pod has no such container".into()));
        };
        let context = self.context.clone();
        let sandbox_config = sandbox_config(
            &self.pod,
            self.sandbox.attempt,
            &context.settings,
            &context.node_dns,
            &context.cgroup_parent(&self.pod),
        );
        let pulled = tokio::select! {
            pulled = self.pull(&found.container, &sandbox_config) => pulled,
            // A pull may take very long; a terminating pod does not wait for it.
            () = self.terminating.cancelled() => {
                return Err(self.failed("ContainerCreating", "the pod terminates before its image is pulled".into()));
            }
        };
        let (image, image_volumes) = pulled.map_err(|failure| {
            context.events.about_container(&self.pod, &self.name, true, "Failed", format!("Error: {}", failure.reason));
            StartFailure {
                reason: failure.reason.to_string(),
                message: failure.message,
                retry_at: failure.retry_at,
                remains: None,
            }
        })?;
        if !image_volumes.is_empty() {
            self.volumes = Arc::new(self.volumes.with(image_volumes));
        }
        let config = self.config(&found, &image).await.map_err(|message| {
            context.events.about_container(&self.pod, &self.name, true, "Failed", format!("Error: {message}"));
            self.failed("CreateContainerConfigError", message)
        })?;
        let labels = [("container_type", pod::container_type(&self.pod, &self.name))];
        context.metrics.count("kubelet_started_containers_total", &labels);
        let turn = context.starts.turn().await;
        let id = match self.create(config, sandbox_config).await? {
            CreatedContainer::New(id) => {
                self.start(&id).await?;
                id
            }
            CreatedContainer::Existing(id) => id,
        };
        drop(turn);
        let view = self.observe(&id).await?;
        self.post_start(&found, &id, view).await
    }

    /// The container's image, and the volumes that are images.
    async fn pull(
        &self,
        container: &Container,
        sandbox: &PodSandboxConfig,
    ) -> Result<(Image, Vec<(String, Mounted)>), ImageFailure> {
        let Self { context, pod, objects, .. } = self;
        let volumes = mount_for(context, pod, container, objects, sandbox).await?;
        Ok((context.images.ensure(pod, container, objects, sandbox.clone()).await?, volumes))
    }

    fn failed(&self, reason: &str, message: String) -> StartFailure {
        let labels = [("container_type", pod::container_type(&self.pod, &self.name)), ("code", reason)];
        self.context.metrics.count("kubelet_started_containers_errors_total", &labels);
        let retry_at = Instant::now() + RETRY_DELAY;
        StartFailure { reason: reason.to_string(), message, retry_at, remains: None }
    }

    async fn config(
        &self,
        found: &FoundContainer,
        image: &Image,
    ) -> Result<knarr_cri::messages::ContainerConfig, String> {
        let FoundContainer { container, .. } = found;
        let context = &self.context;
        let settings = &context.settings;
        let downward = context.downward_context(&self.pod, self.sandbox.addresses.clone());
        if !pod::is_static(&self.pod) {
            context.services.synced().await;
        }
        let services = context.services.list();
        let environment = environment(&self.pod, container, &downward, &self.objects, &services, &self.volumes)
            .await
            .map_err(|error| error.to_string())?;
        let known: BTreeMap<String, String> = environment.iter().cloned().collect();
        let hosts = self.hosts_file().map_err(|error| format!("cannot write the hosts file: {error}"))?;
        let container_mounts = ContainerMounts {
            settings,
            pod: &self.pod,
            container,
            volumes: &self.volumes,
            environment: &known,
            hosts_file: Some(hosts),
            attempt: self.attempt,
            recursive_read_only: self.supports_recursive_read_only(container).await?,
        };
        // Looks into the volumes.
        let mounts = crate::blocking::in_place(|| container_mounts.mounts()).map_err(|error| error.to_string())?;
        let security = container_security(&self.pod, container, image, self.target.as_deref(), settings)
            .map_err(|error| error.to_string())?;
        let mut resources = linux_resources(&self.pod, container, &context.node_memory());
        let grant = context.resources.grant(pod::uid(&self.pod), &self.name);
        resources.cpuset_cpus = context.resources.cpus_of(pod::uid(&self.pod), &self.name);
        resources.cpuset_mems = grant.memory.as_ref().map(|share| share.nodes.to_string()).unwrap_or_default();
        context.resources.before_start(&grant).await?;
        let devices = crate::container::devices::devices_for(&self.volumes, container);
        let parts = ConfigInput {
            pod: &self.pod,
            container,
            image,
            attempt: self.attempt,
            environment,
            mounts,
            devices,
            resources,
            security,
            allocated: grant.devices.into_values().map(|own| own.use_with).collect(),
            cdi_devices: context.dra.cdi_devices(&self.pod, container)?,
        };
        let directory = settings.log_directory(pod::namespace(&self.pod), pod::name(&self.pod), pod::uid(&self.pod));
        private::create_log_directory(&directory.join(&container.name))
            .map_err(|error| format!("cannot create the log directory: {error}"))?;
        container_config(parts).map_err(|error| error.to_string())
    }

    /// Whether the runtime can make mounts below a read-only one read-only. It is asked only if the container wants that.
    async fn supports_recursive_read_only(&self, container: &Container) -> Result<bool, String> {
        let mut mounts = container.volume_mounts.iter().flatten();
        if mounts.all(|mount| mount.recursive_read_only.is_none()) {
            return Ok(false);
        }
        let handler = super::runtime_class::handler(&self.context, &self.pod).await?;
        Ok(self.context.runtime_features.read().of_handler(&handler).recursive_read_only_mounts)
    }

    fn hosts_file(&self) -> std::io::Result<PathBuf> {
        let settings = &self.context.settings;
        let directory = settings.pod_directory(pod::uid(&self.pod));
        private::create_all(&directory)?;
        let path = directory.join("etc-hosts");
        let node_file = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let text = hosts_file(&self.pod, &self.sandbox.addresses, &settings.cluster_domain, &node_file);
        write_hosts_file(&path, &text)?;
        Ok(path)
    }

    async fn create(
        &self,
        config: knarr_cri::messages::ContainerConfig,
        sandbox: PodSandboxConfig,
    ) -> Result<CreatedContainer, StartFailure> {
        let context = &self.context;
        let step = journey_events::container_created(&self.pod, &self.name);
        let created = context.runtime.create_container(&self.sandbox.id, config, sandbox).await;
        journey_events::outcome(&step, &created);
        drop(step);
        match created {
            Ok(id) => {
                log_links::create(&context.settings, &self.pod, &self.name, &id, self.attempt);
                context.index.insert(&id, self.runtime_events.clone());
                context.events.about_container(
                    &self.pod,
                    &self.name,
                    false,
                    "Created",
                    "Container created".to_string(),
                );
                Ok(CreatedContainer::New(id))
            }
            Err(error) => {
                if let Some(id) = self.adopt_or_remove().await {
                    context.index.insert(&id, self.runtime_events.clone());
                    return Ok(CreatedContainer::Existing(id));
                }
                let message = error.message();
                context.events.about_container(&self.pod, &self.name, true, "Failed", format!("Error: {message}"));
                Err(self.failed("CreateContainerError", message))
            }
        }
    }

    /// A container that a previous process or a call with a lost response created has the same name. If it was started
    /// it is adopted; if not it is removed, so that the next attempt can use the name.
    async fn adopt_or_remove(&self) -> Option<String> {
        let filter = ContainerFilter {
            pod_sandbox_id: self.sandbox.id.clone(),
            label_selector: [(label::CONTAINER_NAME.to_string(), self.name.clone())].into(),
            ..Default::default()
        };
        for known in self.context.runtime.list_containers(filter).await.unwrap_or_default() {
            let same = known.metadata.as_ref().is_some_and(|metadata| metadata.attempt == self.attempt);
            match ContainerState::try_from(known.state) {
                Ok(ContainerState::Running | ContainerState::Exited) if same => return Some(known.id),
                Ok(ContainerState::Created) if same => {
                    // If the removal fails, the next start finds the container and tries again.
                    let _ = self.context.runtime.remove_container(&known.id).await;
                }
                _ => {}
            }
        }
        None
    }

    async fn start(&self, id: &str) -> Result<(), StartFailure> {
        let context = &self.context;
        let step = journey_events::container_started(&self.pod, &self.name, self.attempt);
        let started = context.runtime.start_container(id).await;
        journey_events::outcome(&step, &started);
        drop(step);
        match started {
            Ok(()) => {
                context.events.about_container(
                    &self.pod,
                    &self.name,
                    false,
                    "Started",
                    "Container started".to_string(),
                );
                Ok(())
            }
            Err(error) => {
                let message = error.message();
                context.events.about_container(&self.pod, &self.name, true, "Failed", format!("Error: {message}"));
                let mut failure = self.failed("RunContainerError", message);
                failure.remains = self.observe(id).await.ok();
                // The failed container counts as an exit, for which restarts have their own back-off.
                failure.retry_at = Instant::now();
                Err(failure)
            }
        }
    }

    /// Reads a container that the runtime has. Giving up would leave it running unknown to us, so this retries until
    /// the runtime says that it is gone, or the pod terminates.
    async fn observe(&self, id: &str) -> Result<ContainerView, StartFailure> {
        loop {
            match observe_container(&self.context.runtime, id, &self.sandbox.id).await {
                Ok(view) => return Ok(view),
                Err(error) if error.is_not_found() || self.terminating.is_cancelled() => {
                    return Err(self.failed("RunContainerError", error.message()));
                }
                Err(error) => {
                    tracing::warn!(%error, pod = pod::title(&self.pod), "cannot read a container that was just started");
                    tokio::time::sleep(OBSERVE_RETRY_INTERVAL).await;
                }
            }
        }
    }

    async fn post_start(
        &self,
        found: &FoundContainer,
        id: &str,
        view: ContainerView,
    ) -> Result<ContainerView, StartFailure> {
        let hook = found.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(hook) = hook else { return Ok(view) };
        // The container already runs, so its status is reported while the hook runs.
        let _ = self.worker.send(Message::Running(Box::new(view.clone())));
        let (namespace, addresses) = (pod::namespace(&self.pod), self.sandbox.addresses.as_slice());
        let target = HookTarget { namespace, container: &found.container, id, addresses };
        let step = journey_events::hook(&self.pod, &self.name, "postStart");
        let ran = tokio::select! {
            ran = run_hook(&self.context, hook, &target, None) => ran,
            // A server may never respond to its hook; a terminating pod does not wait for it.
            () = self.terminating.cancelled() => {
                drop(step);
                return self.observe(id).await;
            }
        };
        journey_events::outcome(&step, &ran);
        drop(step);
        if let Err(why) = ran {
            let context = &self.context;
            tracing::debug!(why, pod = pod::title(&self.pod), container = self.name, "a post-start hook failed");
            context.events.about_container(&self.pod, &self.name, true, "FailedPostStartHook", "PostStartHook failed");
            context.events.about_container(&self.pod, &self.name, false, "Killing", "FailedPostStartHook".to_string());
            let grace = u64::try_from(pod::grace_seconds(&self.pod)).unwrap_or(30);
            if let Err(error) = context.runtime.stop_container(id, std::time::Duration::from_secs(grace)).await {
                tracing::warn!(%error, pod = pod::title(&self.pod), "cannot stop a container whose hook failed");
            }
            let mut failure = self.failed("PostStartHookError", why);
            failure.remains = self.observe(id).await.ok();
            failure.retry_at = Instant::now();
            return Err(failure);
        }
        self.observe(id).await
    }
}
