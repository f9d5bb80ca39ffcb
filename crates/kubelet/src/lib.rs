//! The kubelet: runs the pods that are bound to this node and reports their status.
//!
//! Input: a client of the Kubernetes API and [`Settings`]. Output: containers run through CRI, the status of pods and
//! node in the API, and HTTPS endpoints for logs, exec and metrics. A pod passes through the modules in this order:
//! `source` (where pods come from) → `pods` (admission) → `worker` (one task per pod, whose `plan` is a pure function)
//! → `volumes` → `container` (the runtime's configuration) → `cgroup` → `probes` → `worker::status` → `node` → `server`.
//!
//! Start reading at [`run`], then at `worker/plan`.

mod api_text;
mod assemble;
mod backoff;
mod beneath;
mod blocking;
mod cgroup;
mod container;
mod container_logs;
mod context;
mod counters;
mod csi;
mod downward_api;
mod dra;
mod events;
mod eviction;
mod filesystem;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod image_reference;
mod image_verification;
mod images;
pub mod inotify;
mod journey_events;
mod log_links;
mod mount;
mod node;
mod node_memory;
mod objects;
mod ownership;
mod pod;
mod pods;
mod private;
mod probes;
pub mod resources;
mod runtime;
mod server;
mod settings;
mod shortened;
mod source;
mod start_queue;
mod tokens;
mod traces;
mod tree;
mod volumes;
mod worker;

pub use cgroup::driver::Driver as CgroupDriver;
pub use eviction::{Eviction, Limit, Signal, Threshold};
pub use image_verification::Verification;
pub use node::LOGIND_FILE;
pub use node::certificates;
/// Serving certificates, for the endpoints of other components too.
pub use server::{tls, watch_files};
pub use settings::{
    CertificateFiles, CredentialProviderFiles, DecisionLifetimes, EndpointAccess, ImageSettings, RestartBackoff,
    Settings, ShutdownPeriod, Tuning,
};

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use knarr_cri::Runtime;
use knarr_supervisor::{Supervisor, current_run};

use context::Context;
use pods::Pods;
use runtime::PodName;
use server::{Access, Server, ServingCertificate};

/// Why the kubelet could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("cannot use the container runtime")]
    Runtime(#[from] knarr_cri::CallError),
    #[error("cannot send traces")]
    Traces(#[from] knarr_traces::ConfigurationError),
    #[error("cannot create the directories of volumes")]
    Volumes(#[from] volumes::VolumeError),
    #[error("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false")]
    Swap,
    #[error(
        "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release"
    )]
    CgroupV1,
    #[error("cannot read which resource claims are prepared")]
    PreparedClaims(#[source] std::io::Error),
    #[error(
        "cannot read which CPUs, memory and devices containers have; please drain this node and delete resource_grants.json"
    )]
    Grants(#[source] std::io::Error),
    #[error("Failed to register CRI auth plugins")]
    CredentialProviders(#[from] images::ProviderError),
    #[error("cannot serve the node's endpoints")]
    Serve(#[from] server::ServeError),
}

/// Runs the kubelet until `shutdown` resolves. Pods keep running after that.
pub async fn run(
    client: kube::Client,
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), NodeError> {
    tokio::pin!(shutdown);
    // The start may wait for a runtime that is down or hangs; a shutdown must not.
    let supervisor = tokio::select! {
        started = start(client, settings) => started?,
        () = &mut shutdown => return Ok(()),
    };
    shutdown.await;
    supervisor.shutdown().await;
    Ok(())
}

/// Starts all components of the kubelet. They stop when their supervisor is dropped.
async fn start(client: kube::Client, settings: Settings) -> Result<Supervisor, NodeError> {
    let runtime = Runtime::connect(&settings.runtime_endpoint)?;
    volumes::prepare(&settings)?;
    let (context, bound) = assemble::context(client, settings, runtime).await?;
    let started = std::time::Instant::now();
    let endpoint = context.settings.runtime_endpoint.as_str();
    let found = assemble::wait_for_runtime(endpoint, || runtime::inventory(&context.runtime)).await?;
    context.metrics.observe("kubelet_pleg_relist_duration_seconds", &[], started.elapsed());
    let names = found.iter().map(|(uid, (_, name))| (uid.clone(), name.clone())).collect();
    let leftovers: HashMap<_, _> = found.into_iter().map(|(uid, (pod, _))| (uid, pod)).collect();
    let pods = Pods::new(context.clone(), leftovers);
    let log = Arc::new(server::health::LogCheck::new(tokio::time::Instant::now()));
    let (port, serving, certificate) = serve(&context, &pods, log.clone()).await?;

    let components = current_run().map(|run| run.registry().clone()).unwrap_or_default();
    let supervisor = Supervisor::new(&components);
    knarr_metrics::register(&[&certificates::CLIENT_ERRORS]);
    traces::start(context.settings.tracing.as_ref(), &context.settings.node_name, &supervisor)?;
    supervisor.essential("kubelet/server", serving);
    supervisor.restart("kubelet/log-check", move || log.clone().run(server::health::flush_log));
    if let Some(address) = context.settings.health {
        supervisor.restart("kubelet/healthz", move || server::health::serve(address));
    }
    context.events.about_node(false, "Starting", "Starting kubelet.");
    record_cgroup_events(&context);
    keep_serving_certificate(&context, certificate, &supervisor);
    watch_runtime(&context, &supervisor);
    if context.settings.register {
        // Static pods must run while there is no API server yet: it may be one of them.
        let context = context.clone();
        supervisor.restart("kubelet/lease", move || register_and_keep_lease(context.clone()));
    }
    let restart = |name: &'static str, run: fn(Arc<Context>, Arc<Pods>) -> BoxFuture<'static, ()>| {
        let (context, pods) = (context.clone(), pods.clone());
        supervisor.restart(name, move || run(context.clone(), pods.clone()));
    };
    let (reporting, reported) = (context.clone(), pods.clone());
    supervisor.restart("kubelet/node-status", move || node::keep_status(reporting.clone(), reported.clone(), port));
    restart("kubelet/eviction", |context, pods| Box::pin(node::watch_eviction(context, pods)));
    restart("kubelet/storage-limits", |context, pods| Box::pin(node::watch_storage_limits(context, pods)));
    restart("kubelet/image-gc", |context, _| Box::pin(collect_images(context)));
    restart("kubelet/log-rotation", |context, pods| Box::pin(node::rotate_logs(context, pods)));
    if !context.settings.shutdown.is_empty() {
        restart("kubelet/shutdown", |context, pods| Box::pin(node::watch_shutdown(context, pods)));
    }
    serve_plugins(&context, &pods, &supervisor);
    start_csi(&context.csi, &supervisor);
    restart("kubelet/dra-slices", |context, _| Box::pin(context.dra.clone().keep_slices()));
    if let Some(directory) = context.settings.manifests.clone() {
        let (context, pods) = (context.clone(), pods.clone());
        supervisor.restart("kubelet/manifests", move || {
            source::watch_manifests(context.clone(), pods.clone(), directory.clone())
        });
    }
    supervisor.essential("kubelet/pods", watch_pods(bound, pods, names));
    Ok(supervisor)
}

/// Passes the runtime's events to the workers of pods.
fn watch_runtime(context: &Context, supervisor: &Supervisor) {
    let (index, metrics, heartbeat) = (context.index.clone(), context.metrics.clone(), context.heartbeat.clone());
    let runtime = context.runtime.clone();
    supervisor.restart("kubelet/pleg", move || {
        runtime::watch_events(runtime.clone(), index.clone(), metrics.clone(), heartbeat.clone())
    });
}

/// Renews the serving certificate, or watches its files.
fn keep_serving_certificate(context: &Arc<Context>, certificate: ServingCertificate, supervisor: &Supervisor) {
    let (context, name) = (context.clone(), "kubelet/serving-certificate");
    match &context.settings.serving_certificate {
        Some(files) if context.settings.reload_serving_certificate => {
            let files = files.clone();
            supervisor.restart(name, move || server::watch_files(files.clone(), certificate.clone()));
        }
        None if context.settings.request_serving_certificate => {
            supervisor.restart(name, move || server::keep_certificate(context.clone(), certificate.clone()));
        }
        _ => {}
    }
}

/// Runs the pods that are bound to this node. It cannot be restarted: the workers of pods would be unknown to a new run.
async fn watch_pods(bound: Arc<knarr_client::Informer<Pod>>, pods: Arc<Pods>, names: HashMap<String, PodName>) {
    source::watch_api(&bound, &pods);
    // Only when all desired pods are known can the others be removed.
    bound.synced().await;
    pods::clear_leftovers(&pods, &names);
    pods.release_stale_grants();
    // An informer that is dropped ends its watch: this one lives as long as the node runs.
    let _bound = bound;
    std::future::pending().await
}

async fn register_and_keep_lease(context: Arc<Context>) {
    let started = std::time::Instant::now();
    node::startup::registering(&context.metrics, context.host.booted_at);
    register_until_done(&context).await;
    node::startup::registered(&context.metrics, started.elapsed());
    node::keep_lease(context).await;
}

/// Finds CSI drivers, keeps the CSINode object, and unstages volumes that no pod uses.
fn start_csi(csi: &Arc<csi::Csi>, supervisor: &Supervisor) {
    let restart = |name: &'static str, run: fn(Arc<csi::Csi>) -> BoxFuture<'static, ()>| {
        let csi = csi.clone();
        supervisor.restart(name, move || run(csi.clone()));
    };
    restart("kubelet/csi-drivers", |csi| Box::pin(csi.watch_plugins()));
    restart("kubelet/csi-node-info", |csi| Box::pin(csi.keep_node_info()));
    restart("kubelet/csi-unstage", |csi| Box::pin(csi.unstage_unused()));
    restart("kubelet/csi-limits", |csi| Box::pin(csi.keep_limits()));
}

/// Serves the sockets for device plugins and monitoring agents, and maintains the pool of shared CPUs.
fn serve_plugins(context: &Arc<Context>, pods: &Arc<Pods>, supervisor: &Supervisor) {
    let (device_context, node, notified) = (context.clone(), pods.node_changed(), pods.clone());
    let changed = Arc::new(move || {
        node::apply_devices(&device_context);
        node.notify_one();
        notified.notify_device_change();
    });
    let notified = Arc::downgrade(pods);
    context.dra.on_health_change(Arc::new(move || {
        if let Some(pods) = notified.upgrade() {
            pods.notify_device_change();
        }
    }));
    let directory = context.settings.plugin_root.join("device-plugins");
    let registration = resources::devices::registration::Registration::new(&directory, &context.resources, changed);
    // A node whose sockets cannot be created works without them; the reason is logged.
    supervisor.complete("kubelet/device-plugins", move || registration.clone().serve());
    let (resources, listed) = (context.resources.clone(), pods.clone());
    let directory: Arc<std::path::Path> = context.settings.plugin_root.join("pod-resources").into();
    supervisor.complete("kubelet/pod-resources", move || {
        let (directory, resources, listed) = (directory.clone(), resources.clone(), listed.clone());
        async move { resources::pod_resources::serve(&directory, resources, listed).await }
    });
    if context.resources.has_static_cpus() {
        let (context, pods) = (context.clone(), pods.clone());
        supervisor.restart("kubelet/shared-cpus", move || pods::keep_shared_cpus(context.clone(), pods.clone()));
    }
}

/// Records the node events about cgroups.
fn record_cgroup_events(context: &Context) {
    let Some(cgroups) = &context.cgroups else { return };
    if !cgroups.is_unified() {
        let message = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. \
            Please migrate to cgroup v2. More information at \
            https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
        context.events.about_node(true, "CgroupV1", message);
    }
    context.events.about_node(false, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
}

async fn serve(
    context: &Arc<Context>,
    pods: &Arc<Pods>,
    log: Arc<server::health::LogCheck>,
) -> Result<(u16, impl Future<Output = ()> + Send + 'static, ServingCertificate), NodeError> {
    let settings = &context.settings;
    let certificate = match &settings.serving_certificate {
        Some(files) => ServingCertificate::from_files(&files.certificate, &files.key),
        None => {
            let mut names = context.addresses.clone();
            names.push(settings.node_name.clone());
            ServingCertificate::self_signed(names)
        }
    };
    let server = Arc::new(Server {
        context: context.clone(),
        pods: pods.clone(),
        access: Access::new(context.client.clone(), &settings.node_name, &settings.access),
        samples: Default::default(),
        log,
        components: current_run().map(|run| run.registry().clone()).unwrap_or_default(),
    });
    let certificate = certificate.map_err(server::ServeError::from)?;
    let (port, serving) = server::serve(server, certificate.clone()).await?;
    Ok((port, serving, certificate))
}

async fn register_until_done(context: &Context) {
    let mut backoff = Duration::from_millis(200);
    while let Err(error) = node::register(context).await {
        if !knarr_client::is_unreachable(&error) {
            tracing::warn!(%error, "cannot register the node yet");
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(Duration::from_secs(7));
    }
}

async fn collect_images(context: Arc<Context>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(300));
    loop {
        ticks.tick().await;
        let _span = traces::internal("Images/GarbageCollect");
        match context.images.collect_garbage(false).await {
            Ok(0) => {}
            Ok(freed) => tracing::info!(freed, "removed unused images"),
            Err(error) => tracing::warn!(error, "cannot remove unused images"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose runtime accepts connections and never responds.
    #[tokio::test]
    async fn a_node_that_waits_for_its_runtime_can_be_stopped() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("hung.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let data = directory.path().join("data");
        let mut settings = Settings::new("n", &data, socket.to_string_lossy().into_owned());
        settings.plugin_root.clone_from(&data);
        settings.log_root = directory.path().join("logs");
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("there is no server"))
        });
        let client = kube::Client::new(service, "default");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let node = tokio::spawn(run(client, settings, async move { drop(stopped.await) }));
        stop.send(()).expect("the node runs");
        let ended = tokio::time::timeout(Duration::from_secs(10), node).await;
        mount::mounts_below(&data).iter().for_each(|point| mount::unmount(point).expect("unmounted"));
        ended.expect("it ends at once").expect("no panic").expect("no error");
    }
}
