//! Builds the [`Context`] of the kubelet: from the settings, the host, the runtime, and records on disk.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::{EventRecorder, Informer, Informers};
use knarr_cri::Runtime;
use parking_lot::RwLock;

use crate::cgroup::driver::Driver;
use crate::context::{Context, RuntimeFeatures};
use crate::events::Events;
use crate::{NodeError, Settings};
use crate::{cgroup, container, counters, csi, dra, host, images, node, objects, resources, runtime};
use crate::{server, start_queue, tokens, volumes};

/// Waits for the runtime, and returns the context with the informer of the pods that are bound to this node.
pub async fn context(
    client: kube::Client,
    settings: Settings,
    runtime: Runtime,
) -> Result<(Arc<Context>, Arc<Informer<Pod>>), NodeError> {
    let endpoint = settings.runtime_endpoint.as_str();
    let version = wait_for_runtime(endpoint, || runtime.version()).await?;
    let metrics = Arc::new(counters::Counters::default());
    let runtime = runtime.with_observer(server::metrics::runtime_observer(metrics.clone()));
    let runtime_features = wait_for_runtime(endpoint, || runtime.status(false)).await;
    let runtime_features = runtime_features.map(|status| RuntimeFeatures::of(&status)).unwrap_or_default();
    let informers = Informers::new(client.clone()).with_transform(knarr_client::pod::shrink_to_fit);
    let host = host::read();
    let allocatable = node::allocatable(&settings, &host);
    let driver = wait_for_runtime(endpoint, || cgroup_driver(&runtime, settings.cgroup_driver)).await?;
    let cgroups = prepare_cgroups(&settings, driver, &allocatable, node::memory_for_pods(&settings, &host));
    check_host(&settings, cgroups.as_ref(), &std::fs::read_to_string("/proc/swaps").unwrap_or_default())?;
    let resolv_conf = settings.resolv_conf.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    let bound = informers.selected::<Pod>(&format!("spec.nodeName={}", settings.node_name), "");
    let node = informers.selected::<Node>(&format!("metadata.name={}", settings.node_name), "");
    let tokens = tokens::Tokens::new(client.clone());
    let drivers = informers.of::<CSIDriver>();
    let objects =
        csi::InformedObjects { node_name: settings.node_name.clone(), node: node.clone(), drivers: drivers.clone() };
    let parts = csi::Parts {
        client: client.clone(),
        tokens: tokens.clone(),
        objects: Arc::new(objects),
        metrics: metrics.clone(),
    };
    let csi = csi::Csi::new(&settings, parts);
    csi.set_disks(volumes::recorded_disks(&settings));
    let dra = dra::Dra::open(client.clone(), &settings.node_name, &settings.root).map_err(NodeError::PreparedClaims)?;
    csi.dra.get_or_init(|| dra.clone());
    notify_csi(&csi, &node, &drivers);
    let resources =
        resources::Resources::open(&settings.root, settings.resources.clone(), host.memory, metrics.clone())
            .map_err(NodeError::Grants)?;
    let recorder = EventRecorder::new(client.clone(), "kubelet", Some(&settings.node_name));
    let events = Events::new(recorder, &settings.node_name);
    let accounts = images::ApiAccounts { client: client.clone(), tokens: tokens.clone() };
    let files = settings.images.credential_providers.as_ref();
    let providers = images::Providers::open(files, Arc::new(accounts), metrics.clone())?;
    let image_parts =
        images::Parts { runtime: runtime.clone(), events: events.clone(), metrics: metrics.clone(), providers };
    let context = Context {
        resources: Arc::new(resources),
        events,
        objects: objects::ObjectCache::new(client.clone()),
        services: informers.of::<Service>(),
        node,
        csi,
        dra,
        images: images::Images::open(&settings, image_parts),
        tokens,
        index: runtime::Index::default(),
        heartbeat: runtime::Heartbeat::new(std::time::Instant::now()),
        addresses: vec![settings.node_ip.to_string()],
        node_dns: container::dns::parse_resolv_conf(&resolv_conf.unwrap_or_default()),
        allocatable: RwLock::new(allocatable),
        metrics,
        started_at: tokio::time::Instant::now(),
        starts: start_queue::StartQueue::new(host.cpus),
        runtime_features: RwLock::new(runtime_features),
        runtime_name: version.runtime_name,
        runtime_version: version.runtime_version,
        cgroups,
        host,
        client,
        runtime,
        settings,
    };
    Ok((Arc::new(context), bound))
}

/// Notifies CSI volumes of changes of the node and of the drivers' objects.
fn notify_csi(csi: &Arc<csi::Csi>, node: &Informer<Node>, drivers: &Informer<CSIDriver>) {
    let notified = Arc::downgrade(csi);
    node.on_change(move |change| {
        if let Some(csi) = notified.upgrade() {
            csi.node_changed(change.latest());
        }
    });
    let notified = Arc::downgrade(csi);
    drivers.on_change(move |_| {
        if let Some(csi) = notified.upgrade() {
            csi.driver_objects_changed();
        }
    });
}

/// Refuses hosts that the settings exclude. `swaps` is `/proc/swaps`: a heading, and a line per device.
fn check_host(settings: &Settings, cgroups: Option<&cgroup::Cgroups>, swaps: &str) -> Result<(), NodeError> {
    if settings.fail_swap_on && swaps.lines().filter(|line| !line.trim().is_empty()).count() > 1 {
        return Err(NodeError::Swap);
    }
    if settings.fail_cgroup_v1 && cgroups.is_some_and(|cgroups| !cgroups.is_unified()) {
        return Err(NodeError::CgroupV1);
    }
    Ok(())
}

/// The cgroup driver of the runtime; runtimes before CRI 1.28 do not report it.
async fn cgroup_driver(runtime: &Runtime, configured: Driver) -> Result<Driver, knarr_cri::CallError> {
    use knarr_cri::messages::CgroupDriver;
    match runtime.runtime_config().await {
        Ok(reported) => Ok(match reported.linux.map(|linux| linux.cgroup_driver()) {
            Some(CgroupDriver::Systemd) => Driver::Systemd,
            Some(CgroupDriver::Cgroupfs) => Driver::Cgroupfs,
            None => configured,
        }),
        Err(error) if error.is_unimplemented() => Ok(configured),
        Err(error) => Err(error),
    }
}

/// A host where we cannot create cgroups still runs pods, but without pod-level limits.
fn prepare_cgroups(
    settings: &Settings,
    driver: Driver,
    allocatable: &BTreeMap<String, Quantity>,
    memory: u64,
) -> Option<cgroup::Cgroups> {
    let cgroups =
        cgroup::Cgroups::discover(&settings.cgroup_root, driver, settings.pod_pids_limit).and_then(|cgroups| {
            let cpu = allocatable.get("cpu").map_or(0, knarr_client::quantity::milli_value);
            cgroups.prepare(cpu, i64::try_from(memory).unwrap_or(i64::MAX))?;
            Ok(cgroups)
        });
    match cgroups {
        Ok(cgroups) => Some(cgroups),
        Err(error) => {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, source, "cannot create pod cgroups: limits of whole pods are not enforced");
            None
        }
    }
}

/// How often a waiting start logs what it waits for.
const WAIT_REPORT: Duration = Duration::from_secs(5);

/// Calls the runtime until it responds. It may still be starting, or may be restarting after it was reached once.
pub async fn wait_for_runtime<T, F>(endpoint: &str, query: impl Fn() -> F) -> Result<T, knarr_cri::CallError>
where
    F: Future<Output = Result<T, knarr_cri::CallError>>,
{
    const TIMEOUT: Duration = Duration::from_secs(60);
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut reported = tokio::time::Instant::now();
    loop {
        let call = query();
        tokio::pin!(call);
        let outcome = loop {
            tokio::select! {
                outcome = &mut call => break outcome,
                () = tokio::time::sleep(WAIT_REPORT) => {
                    tracing::warn!(endpoint, "waiting for the container runtime, which has not responded yet");
                }
            }
        };
        match outcome {
            Err(error) if error.is_unavailable() && tokio::time::Instant::now() < deadline => {
                if reported.elapsed() >= WAIT_REPORT {
                    reported = tokio::time::Instant::now();
                    tracing::warn!(%error, endpoint, "waiting for the container runtime");
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_swap_are_refused_if_asked() {
        let heading = "Filename Type Size Used Priority\n";
        let mut settings = Settings::new("n", "/data", String::new());
        assert!(check_host(&settings, None, &format!("{heading}/dev/sda2 partition 1 0 -2\n")).is_ok());
        settings.fail_swap_on = true;
        assert!(check_host(&settings, None, heading).is_ok());
        assert!(check_host(&settings, None, &format!("{heading}/dev/sda2 partition 1 0 -2\n")).is_err());
    }
}
