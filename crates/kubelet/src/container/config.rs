//! The whole configuration of one container.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_cri::messages::{
    CdiDevice, ContainerConfig, ContainerMetadata, Device, Image, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, Mount,
};

use super::env::expand;
use crate::pod;
use crate::resources::devices::plugin::Allocated;
use crate::runtime::label;

pub struct Parts<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub image: &'a Image,
    pub attempt: u32,
    pub environment: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub resources: LinuxContainerResources,
    pub security: LinuxContainerSecurityContext,
    /// What the container needs for the devices it was given.
    pub given: Vec<Allocated>,
}

pub fn container_config(parts: Parts<'_>) -> ContainerConfig {
    let Parts { pod, container, image, attempt, environment, mounts, devices, resources, security, given } = parts;
    let known: BTreeMap<String, String> = environment.iter().cloned().collect();
    let expanded = |words: &Option<Vec<String>>| words.iter().flatten().map(|word| expand(word, &known)).collect();
    let mut config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(ImageSpec {
            image: image.id.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        mounts,
        devices,
        labels: labels(pod, container),
        annotations: annotations(pod, container, attempt),
        log_path: format!("{}/{attempt}.log", container.name),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig { resources: Some(resources), security_context: Some(security) }),
        stop_signal: stop_signal(container),
        ..Default::default()
    };
    given.into_iter().for_each(|own| add_given(&mut config, own));
    config
}

/// What the pod itself asks for comes before what comes with a device.
fn add_given(config: &mut ContainerConfig, given: Allocated) {
    for (key, value) in given.environment {
        if config.envs.iter().all(|known| known.key != key) {
            config.envs.push(KeyValue { key, value });
        }
    }
    config.mounts.extend(given.mounts.into_iter().map(|mount| Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        readonly: mount.read_only,
        ..Default::default()
    }));
    config.devices.extend(given.devices.into_iter().map(|device| Device {
        container_path: device.container_path,
        host_path: device.host_path,
        permissions: device.permissions,
    }));
    config.cdi_devices.extend(given.cdi_devices.into_iter().map(|device| CdiDevice { name: device.name }));
    for (key, value) in given.annotations {
        config.annotations.entry(key).or_insert(value);
    }
}

fn labels(pod: &Pod, container: &Container) -> HashMap<String, String> {
    HashMap::from([
        (label::POD_NAME.to_string(), pod::name(pod).to_string()),
        (label::POD_NAMESPACE.to_string(), pod::namespace(pod).to_string()),
        (label::POD_UID.to_string(), pod::uid(pod).to_string()),
        (label::CONTAINER_NAME.to_string(), container.name.clone()),
    ])
}

/// What a later life of the node must know of the container without asking the API.
fn annotations(pod: &Pod, container: &Container, attempt: u32) -> HashMap<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    HashMap::from([
        (label::RESTART_COUNT.to_string(), attempt.to_string()),
        (label::HASH.to_string(), format!("{:x}", hash(container))),
        (label::TERMINATION_PATH.to_string(), text(&container.termination_message_path)),
        (label::TERMINATION_POLICY.to_string(), text(&container.termination_message_policy)),
        (label::GRACE.to_string(), pod::grace_seconds(pod).to_string()),
        (label::IMAGE.to_string(), text(&container.image)),
    ])
}

/// FNV-1a over what makes it another container.
fn hash(container: &Container) -> u32 {
    let text = format!("{}\0{}", container.name, container.image.as_deref().unwrap_or_default());
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The runtime's numbers for signals follow their names in alphabetical order, after the default.
fn stop_signal(container: &Container) -> i32 {
    const NAMES: [&str; 34] = [
        "SIGABRT",
        "SIGALRM",
        "SIGBUS",
        "SIGCHLD",
        "SIGCLD",
        "SIGCONT",
        "SIGFPE",
        "SIGHUP",
        "SIGILL",
        "SIGINT",
        "SIGIO",
        "SIGIOT",
        "SIGKILL",
        "SIGPIPE",
        "SIGPOLL",
        "SIGPROF",
        "SIGPWR",
        "SIGQUIT",
        "SIGSEGV",
        "SIGSTKFLT",
        "SIGSTOP",
        "SIGSYS",
        "SIGTERM",
        "SIGTRAP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGUSR1",
        "SIGUSR2",
        "SIGVTALRM",
        "SIGWINCH",
        "SIGXCPU",
        "SIGXFSZ",
    ];
    let wanted = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let place = wanted.and_then(|wanted| NAMES.iter().position(|name| *name == wanted));
    place.and_then(|place| i32::try_from(place + 1).ok()).unwrap_or(0)
}
