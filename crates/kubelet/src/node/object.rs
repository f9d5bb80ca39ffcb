//! Builds the status of the Node object.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use knarr_client::quantity::{self, Format, Quantity as Amount, scale};
use knarr_client::time::truncated;
use knarr_cri::messages::{Image, StatusResponse};

use crate::context::Context;
use crate::eviction::{Pressure, Signal};
use crate::filesystem::usage_of;
use crate::host::Host;
use crate::settings::Settings;

/// A limit that keeps the object small; the scheduler needs no more.
const MAX_IMAGE_NAMES: usize = 5;

/// The features that the node declares to the control plane.
const DECLARED_FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

type Amounts = BTreeMap<String, Quantity>;

fn binary(bytes: u64) -> Quantity {
    quantity::to_api(&Amount::new(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi))
}

/// Updates the allocatable resources with the plugins' current devices.
pub fn apply_devices(context: &Context) {
    let mut amounts = allocatable(&context.settings, &context.host);
    let devices = context.resources.devices.amounts(tokio::time::Instant::now());
    amounts.extend(devices.into_iter().map(|(name, (_, healthy))| (name, Quantity(healthy.to_string()))));
    *context.allocatable.write() = amounts;
}

pub fn capacity(settings: &Settings, host: &Host) -> Amounts {
    let mut amounts = Amounts::from([
        ("cpu".to_string(), Quantity(host.cpus.to_string())),
        ("memory".to_string(), Quantity(format!("{}Ki", host.memory / 1024))),
        ("pods".to_string(), Quantity(settings.max_pods.to_string())),
    ]);
    if let Some(usage) = usage_of(&settings.root) {
        amounts.insert("ephemeral-storage".into(), Quantity(format!("{}Ki", usage.capacity / 1024)));
    }
    for (size, bytes) in &host.hugepages {
        amounts.insert(format!("hugepages-{size}"), binary(*bytes));
    }
    amounts
}

/// The memory limit of all pods together, in bytes: all but what is reserved. Pods may briefly exceed the eviction
/// threshold within it.
pub fn memory_for_pods(settings: &Settings, host: &Host) -> u64 {
    let reserved = settings.reserved.get("memory").and_then(|text| Amount::parse(text).ok());
    let reserved = reserved.and_then(|amount| u64::try_from(amount.value()).ok()).unwrap_or(0);
    host.memory.saturating_sub(reserved)
}

/// The allocatable resources: the capacity minus reservations and hard eviction limits.
pub fn allocatable(settings: &Settings, host: &Host) -> Amounts {
    let mut amounts = capacity(settings, host);
    for (name, amount) in &mut amounts {
        let whole = quantity::of(amount);
        let units = |amount: &Amount| amount.saturating_value(scale::ONE);
        let mut rest = whole.clone();
        if let Some(reserved) = settings.reserved.get(name).and_then(|text| Amount::parse(text).ok()) {
            rest.subtract(&reserved);
        }
        let threshold = match name.as_str() {
            "memory" => settings.eviction.reserved(Signal::Memory, units(&whole)),
            "ephemeral-storage" => settings.eviction.reserved(Signal::NodeDisk, units(&whole)),
            _ => 0,
        };
        if threshold > 0 {
            rest.subtract(&Amount::new(threshold, whole.format()));
        }
        if name == "memory" {
            // Huge pages are part of the total memory.
            let huge: u64 = host.hugepages.values().sum();
            rest.subtract(&Amount::new(i64::try_from(huge).unwrap_or(i64::MAX), whole.format()));
        }
        if rest.is_negative() {
            rest = Amount::ZERO;
        }
        *amount = match name.as_str() {
            "ephemeral-storage" if units(&rest) != units(&whole) => Quantity(units(&rest).to_string()),
            _ => quantity::to_api(&rest),
        };
    }
    amounts
}

pub struct ObservedNode {
    pub runtime: Option<StatusResponse>,
    pub images: Vec<Image>,
    pub pressure: Pressure,
    pub serving_port: u16,
    pub previous: Vec<NodeCondition>,
    /// The node is not ready while it shuts down, even if the runtime is.
    pub shutting_down: bool,
}

pub fn status(context: &Context, observed: &ObservedNode, now: Timestamp) -> NodeStatus {
    let (settings, host) = (&context.settings, &context.host);
    let mut capacity = capacity(settings, host);
    let devices = context.resources.devices.amounts(tokio::time::Instant::now());
    capacity.extend(devices.into_iter().map(|(name, (all, _))| (name, Quantity(all.to_string()))));
    let mut allocatable = context.allocatable.read().clone();
    // Capacity that others added to the node is fully allocatable.
    let known = context.node.get("", &settings.node_name);
    let foreign = known.iter().filter_map(|node| node.status.as_ref()?.capacity.as_ref()).flatten();
    for (name, amount) in foreign.filter(|(name, _)| name.contains('/') && !capacity.contains_key(*name)) {
        allocatable.insert(name.clone(), amount.clone());
    }
    let reported = known.as_ref().and_then(|node| node.status.as_ref()?.addresses.as_deref()).unwrap_or_default();
    NodeStatus {
        addresses: addresses(settings, &context.addresses, reported),
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions(observed, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: observed.serving_port.into() }),
        }),
        images: Some(images(&observed.images, settings.tuning.status_images.unwrap_or(usize::MAX))),
        node_info: Some(NodeSystemInfo {
            architecture: host.architecture.to_string(),
            boot_id: host.boot_id.clone(),
            container_runtime_version: format!(
                "{}://{}",
                context.runtime_name,
                plain_version(&context.runtime_version)
            ),
            kernel_version: host.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: knarr_version::reported().to_string(),
            machine_id: host.machine_id.clone(),
            operating_system: "linux".to_string(),
            os_image: host.operating_system.clone(),
            system_uuid: host.system_uuid.clone(),
            swap: Some(NodeSwapStatus { capacity: i64::try_from(host.swap).ok() }).filter(|_| host.swap > 0),
        }),
        declared_features: Some(DECLARED_FEATURES.map(str::to_string).to_vec()),
        features: observed
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.features)
            .map(|features| NodeFeatures { supplemental_groups_policy: Some(features.supplemental_groups_policy) }),
        volumes_in_use: context.csi.volumes_in_use(),
        runtime_handlers: observed.runtime.as_ref().map(handlers).filter(|list| !list.is_empty()),
        ..NodeStatus::default()
    }
}

/// The addresses to report. Those that a cloud provider has set stay; until then the node has an address only if it was
/// configured.
fn addresses(settings: &Settings, own: &[String], reported: &[NodeAddress]) -> Option<Vec<NodeAddress>> {
    let address = |kind: &str, address: &str| NodeAddress { type_: kind.to_string(), address: address.to_string() };
    let is_external = settings.external_cloud_provider;
    if is_external && !reported.is_empty() {
        return None;
    }
    let own = own.iter().filter(|_| !is_external || settings.node_ip_is_given);
    let mut addresses: Vec<NodeAddress> = own.map(|ip| address("InternalIP", ip)).collect();
    addresses.push(address("Hostname", &settings.node_name));
    Some(addresses)
}

/// The runtime's version for the API: complete if it is a semantic version, otherwise its numbers only.
fn plain_version(version: &str) -> &str {
    let version = version.strip_prefix('v').unwrap_or(version);
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let (numbers, rest) = version.split_at(end);
    let is_semantic = numbers.split('.').count() == 3
        && (rest.is_empty() || rest.starts_with(['-', '+']))
        && rest.chars().all(|c| c.is_ascii_alphanumeric() || "-+.".contains(c));
    if is_semantic { version } else { numbers.trim_end_matches('.') }
}

fn handlers(runtime: &StatusResponse) -> Vec<NodeRuntimeHandler> {
    let one = |handler: &knarr_cri::messages::RuntimeHandler| NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: handler.features.map(|features| NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
            user_namespaces: Some(features.user_namespaces),
        }),
    };
    runtime.runtime_handlers.iter().map(one).collect()
}

/// The largest images first, each with a few of its names.
fn images(images: &[Image], max: usize) -> Vec<ContainerImage> {
    let mut sorted: Vec<&Image> = images.iter().collect();
    sorted.sort_by_key(|image| (std::cmp::Reverse(image.size), image.id.clone()));
    sorted
        .into_iter()
        .take(max)
        .map(|image| ContainerImage {
            names: Some(image.repo_digests.iter().chain(&image.repo_tags).take(MAX_IMAGE_NAMES).cloned().collect()),
            size_bytes: i64::try_from(image.size).ok(),
        })
        .collect()
}

fn conditions(observed: &ObservedNode, now: Timestamp) -> Vec<NodeCondition> {
    let pressure = &observed.pressure;
    let mut list = vec![
        condition_of(
            "MemoryPressure",
            pressure.memory,
            ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
            ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ),
        condition_of(
            "DiskPressure",
            pressure.disk,
            ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ),
        condition_of(
            "PIDPressure",
            pressure.processes,
            ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
            ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ),
    ];
    let problems = problems(observed);
    let text = problems.join(", ");
    list.push(condition_of(
        "Ready",
        problems.is_empty(),
        ("KubeletReady", "kubelet is posting ready status"),
        ("KubeletNotReady", &text),
    ));
    for condition in &mut list {
        let known = observed.previous.iter().find(|known| known.type_ == condition.type_);
        let since = known.filter(|known| known.status == condition.status);
        condition.last_transition_time =
            since.and_then(|known| known.last_transition_time.clone()).or_else(|| Some(truncated(now)));
        condition.last_heartbeat_time = Some(truncated(now));
    }
    list
}

fn condition_of(kind: &str, holds: bool, yes: (&str, &str), no: (&str, &str)) -> NodeCondition {
    let (reason, message) = if holds { yes } else { no };
    NodeCondition {
        type_: kind.to_string(),
        status: if holds { "True" } else { "False" }.to_string(),
        reason: Some(reason.to_string()),
        message: Some(message.to_string()),
        ..Default::default()
    }
}

/// Why the node is not ready.
fn problems(observed: &ObservedNode) -> Vec<String> {
    let mut problems = Vec::new();
    if observed.shutting_down {
        problems.push("node is shutting down".to_string());
    }
    match &observed.runtime {
        None => problems.push("container runtime is down".to_string()),
        Some(response) => problems.extend(runtime_problems(response)),
    }
    problems
}

/// Which of the two conditions that count does not hold. Runtimes report others, too, such as containerd its deprecated
/// settings.
fn runtime_problems(response: &StatusResponse) -> Vec<String> {
    let required =
        [("RuntimeReady", "container runtime not ready"), ("NetworkReady", "container runtime network not ready")];
    let problem = |(kind, title): (&str, &str)| {
        let mut conditions = response.status.iter().flat_map(|status| &status.conditions);
        match conditions.find(|condition| condition.kind == kind) {
            Some(condition) if condition.status => None,
            Some(found) => Some(format!("{title}: {kind}=false reason:{} message:{}", found.reason, found.message)),
            None => Some(format!("{title}: <nil>")),
        }
    };
    required.into_iter().filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use knarr_cri::messages::{RuntimeCondition, RuntimeStatus};

    use super::*;

    #[test]
    fn two_conditions_of_the_runtime_count() {
        let condition = |kind: &str, status| RuntimeCondition {
            kind: kind.into(),
            status,
            reason: "R".into(),
            message: "m".into(),
        };
        let good = || vec![condition("RuntimeReady", true), condition("NetworkReady", true)];
        let deprecation = condition("ContainerdHasNoDeprecationWarnings", false);
        for (conditions, expected) in [
            (good(), vec![]),
            ([good(), vec![deprecation]].concat(), vec![]),
            (
                vec![condition("RuntimeReady", true), condition("NetworkReady", false)],
                vec!["container runtime network not ready: NetworkReady=false reason:R message:m"],
            ),
            (vec![condition("NetworkReady", true)], vec!["container runtime not ready: <nil>"]),
        ] {
            let response = StatusResponse { status: Some(RuntimeStatus { conditions }), ..Default::default() };
            assert_eq!(runtime_problems(&response), expected);
        }
    }

    #[test]
    fn reserved_amounts_are_kept_back() {
        let mut settings = Settings::new("n", "/", "/x".into());
        settings.reserved = BTreeMap::from([("cpu".to_string(), "500m".to_string())]);
        let host = Host { cpus: 2, memory: 1 << 30, ..Default::default() };
        let amounts = allocatable(&settings, &host);
        assert_eq!(amounts["cpu"].0, "1500m");
        assert_eq!(amounts["memory"].0, "924Mi");
        assert_eq!(amounts["pods"].0, "110");
    }

    #[test]
    fn addresses_of_a_cloud_provider_take_precedence() {
        let mut settings = Settings::new("n", "/", "/x".into());
        let cloud = [NodeAddress { type_: "ExternalIP".into(), address: "192.0.2.1".into() }];
        for (external, given, reported, expected) in [
            (false, false, &cloud[..], Some("InternalIP=10.0.0.1 Hostname=n")),
            (true, false, &[], Some("Hostname=n")),
            (true, true, &[], Some("InternalIP=10.0.0.1 Hostname=n")),
            (true, true, &cloud, None),
        ] {
            (settings.external_cloud_provider, settings.node_ip_is_given) = (external, given);
            let found = addresses(&settings, &["10.0.0.1".to_string()], reported).map(|list| {
                list.iter().map(|one| format!("{}={}", one.type_, one.address)).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(found.as_deref(), expected, "{external} {given}");
        }
    }

    #[test]
    fn versions_are_shown_as_numbers_unless_they_are_semantic() {
        for (version, expected) in [
            ("1.6.20~ds1", "1.6.20"),
            ("v1.7.13", "1.7.13"),
            ("2.0.0-rc.1+k3s1", "2.0.0-rc.1+k3s1"),
            ("1.2", "1.2"),
            ("1.2.3.4", "1.2.3.4"),
        ] {
            assert_eq!(plain_version(version), expected, "{version}");
        }
    }
}
