//! Builds the CRI configuration of one container.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_cri::messages::{
    CdiDevice, ContainerConfig, ContainerMetadata, Device, Image, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, Mount,
};

use super::env::{Budget, TooLong, expand};
use crate::pod;
use crate::resources::devices::plugin::Allocated;
use crate::runtime::label;

pub struct ConfigInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub image: &'a Image,
    pub attempt: u32,
    pub environment: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub resources: LinuxContainerResources,
    pub security: LinuxContainerSecurityContext,
    /// What the container needs to use its assigned devices.
    pub allocated: Vec<Allocated>,
    /// The names of the devices of its claims.
    pub cdi_devices: Vec<String>,
}

pub fn container_config(parts: ConfigInput<'_>) -> Result<ContainerConfig, TooLong> {
    let ConfigInput { pod, container, image, attempt, environment, mounts, devices, resources, security, .. } = parts;
    let known: BTreeMap<String, String> = environment.iter().cloned().collect();
    let mut budget = Budget::of_program();
    let mut expanded = |list: &Option<Vec<String>>| -> Result<Vec<String>, TooLong> {
        list.iter().flatten().map(|text| expand(text, &known, &mut budget)).collect()
    };
    let mut config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(ImageSpec {
            image: image.id.clone(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expanded(&container.command)?,
        args: expanded(&container.args)?,
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
    parts.allocated.into_iter().for_each(|own| add_allocated(&mut config, own));
    config.cdi_devices.extend(parts.cdi_devices.into_iter().map(|name| CdiDevice { name }));
    Ok(config)
}

/// The pod's own settings take precedence over those of a device.
fn add_allocated(config: &mut ContainerConfig, allocated: Allocated) {
    for (key, value) in allocated.environment {
        if config.envs.iter().all(|known| known.key != key) {
            config.envs.push(KeyValue { key, value });
        }
    }
    config.mounts.extend(allocated.mounts.into_iter().map(|mount| Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        readonly: mount.read_only,
        ..Default::default()
    }));
    config.devices.extend(allocated.devices.into_iter().map(|device| Device {
        container_path: device.container_path,
        host_path: device.host_path,
        permissions: device.permissions,
    }));
    config.cdi_devices.extend(allocated.cdi_devices.into_iter().map(|device| CdiDevice { name: device.name }));
    for (key, value) in allocated.annotations {
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

/// What a restarted kubelet must know about the container without the API.
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

/// FNV-1a over the fields whose change requires a new container.
fn hash(container: &Container) -> u32 {
    let text = format!("{}\0{}", container.name, container.image.as_deref().unwrap_or_default());
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// CRI numbers the signals in alphabetical order, after the default.
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
    let requested = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let place = requested.and_then(|requested| NAMES.iter().position(|name| *name == requested));
    place.and_then(|place| i32::try_from(place + 1).ok()).unwrap_or(0)
}
