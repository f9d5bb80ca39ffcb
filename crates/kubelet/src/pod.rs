//! Accessors for the fields of a pod that the kubelet reads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs to completion before the next one starts.
    Init,
    /// An init container that keeps running beside the main ones.
    Sidecar,
    Main,
    /// Added later, for debugging.
    Ephemeral,
}

/// Annotation that says where a pod's description comes from.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// `namespace/name`, for logs.
pub fn title(pod: &Pod) -> String {
    format!("{}/{}", namespace(pod), name(pod))
}

/// `name_namespace(uid)`, for messages that must identify the pod uniquely.
pub fn full_title(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

pub fn spec(pod: &Pod) -> &PodSpec {
    static NONE: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&NONE)
}

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A pod from the manifest directory rather than from the API.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| source != "api")
}

/// The mirror pod that shows a static pod in the API.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

/// The priority from which on pods are critical.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Static pods and pods of the two system priority classes are never rejected for lack of resources, and are evicted
/// last.
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod) || is_mirror(pod) || spec(pod).priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL)
}

/// The claim behind a volume of the pod.
pub fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", name(pod), volume.name)),
        (None, None) => None,
    }
}

pub fn restart_policy(pod: &Pod) -> &str {
    spec(pod).restart_policy.as_deref().unwrap_or("Always")
}

pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or(false)
}

pub fn role_of_init(container: &Container) -> Role {
    if container.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init }
}

pub fn init_containers(pod: &Pod) -> impl DoubleEndedIterator<Item = (Role, &Container)> {
    spec(pod).init_containers.iter().flatten().map(|container| (role_of_init(container), container))
}

pub fn main_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    spec(pod).containers.iter()
}

pub fn ephemeral_containers(pod: &Pod) -> impl Iterator<Item = &EphemeralContainer> {
    spec(pod).ephemeral_containers.iter().flatten()
}

/// The names of all containers with their roles, in the order they start.
pub fn roles(pod: &Pod) -> impl Iterator<Item = (Role, &str)> {
    init_containers(pod)
        .map(|(role, container)| (role, container.name.as_str()))
        .chain(main_containers(pod).map(|container| (Role::Main, container.name.as_str())))
        .chain(ephemeral_containers(pod).map(|container| (Role::Ephemeral, container.name.as_str())))
}

/// A container by name. An ephemeral container is converted to a `Container` and its target.
pub struct FoundContainer {
    pub container: Container,
    pub target: Option<String>,
}

pub fn find(pod: &Pod, name: &str) -> Option<FoundContainer> {
    let plain = init_containers(pod).chain(main_containers(pod).map(|container| (Role::Main, container)));
    for (_, container) in plain {
        if container.name == name {
            return Some(FoundContainer { container: container.clone(), target: None });
        }
    }
    let found = ephemeral_containers(pod).find(|container| container.name == name)?;
    Some(FoundContainer { container: common_form(found), target: found.target_container_name.clone() })
}

fn common_form(ephemeral: &EphemeralContainer) -> Container {
    let from = ephemeral.clone();
    Container {
        args: from.args,
        command: from.command,
        env: from.env,
        env_from: from.env_from,
        image: from.image,
        image_pull_policy: from.image_pull_policy,
        name: from.name,
        resources: from.resources,
        security_context: from.security_context,
        stdin: from.stdin,
        stdin_once: from.stdin_once,
        termination_message_path: from.termination_message_path,
        termination_message_policy: from.termination_message_policy,
        tty: from.tty,
        volume_devices: from.volume_devices,
        volume_mounts: from.volume_mounts,
        working_dir: from.working_dir,
        ..Container::default()
    }
}

type Resources = Option<BTreeMap<String, Quantity>>;

pub fn requests(container: &Container) -> &Resources {
    container.resources.as_ref().map_or(&None, |resources| &resources.requests)
}

pub fn limits(container: &Container) -> &Resources {
    container.resources.as_ref().map_or(&None, |resources| &resources.limits)
}

/// The `container_type` label of a container.
pub fn container_type(pod: &Pod, container: &str) -> &'static str {
    match roles(pod).find(|(_, name)| *name == container).map(|(role, _)| role) {
        Some(Role::Init | Role::Sidecar) => "init_container",
        Some(Role::Ephemeral) => "ephemeral_container",
        _ => "container",
    }
}

/// The seconds between the stop signal and the kill.
pub fn grace_seconds(pod: &Pod) -> i64 {
    let chosen = pod.metadata.deletion_grace_period_seconds.or(spec(pod).termination_grace_period_seconds);
    chosen.unwrap_or(30).max(0)
}
