//! The security context of a container: the pod's, overridden by the container's own.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, SELinuxOptions, SeccompProfile, SecurityContext};
use knarr_cri::messages::{
    Capability, Image, Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext, NamespaceMode,
    NamespaceOption, ProfileType, SecurityProfile, SelinuxOption, SupplementalGroupsPolicy,
};

use super::user_namespace;
use crate::beneath;
use crate::pod;
use crate::settings::Settings;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SecurityError {
    #[error("container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})")]
    RunsAsRoot { pod: String, container: String },
    #[error("container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})")]
    RunAsRootRequested { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root \
         (pod: \"{pod}\", container: {container})"
    )]
    UnknownUser { user: String, pod: String, container: String },
    #[error("image will run as user {user}, which is no user id (pod: \"{pod}\", container: {container})")]
    UserRange { user: i64, pod: String, container: String },
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoSeccompProfile,
    #[error("seccomp profile {0:?} must be a relative path without '..'")]
    SeccompPath(String),
    #[error("unknown seccomp profile type: {0:?}")]
    SeccompType(String),
    #[error("missing localhost apparmor profile name")]
    NoAppArmorProfile,
    #[error("unknown apparmor profile type: {0:?}")]
    AppArmorType(String),
}

const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|context| context.privileged).unwrap_or(false)
}

pub fn namespaces(pod: &Pod, settings: &Settings) -> NamespaceOption {
    let spec = pod::spec(pod);
    let mode = |host: Option<bool>, otherwise| if host == Some(true) { NamespaceMode::Node } else { otherwise };
    let own_or_shared =
        if spec.share_process_namespace == Some(true) { NamespaceMode::Pod } else { NamespaceMode::Container };
    NamespaceOption {
        network: mode(spec.host_network, NamespaceMode::Pod) as i32,
        ipc: mode(spec.host_ipc, NamespaceMode::Pod) as i32,
        pid: mode(spec.host_pid, own_or_shared) as i32,
        userns_options: user_namespace::of(settings, pod).map(user_namespace::Range::options),
        ..Default::default()
    }
}

pub fn sandbox_security(pod: &Pod, settings: &Settings) -> LinuxSandboxSecurityContext {
    let spec = pod::spec(pod);
    let context = spec.security_context.clone().unwrap_or_default();
    let privileged = pod::init_containers(pod).map(|(_, c)| c).chain(pod::main_containers(pod)).any(is_privileged);
    LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, settings)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(|value| Int64Value { value }),
        // The runtime rejects a group without a user.
        run_as_group: context.run_as_user.and(context.run_as_group).map(|value| Int64Value { value }),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        privileged,
        // Profiles are written for containers and may be too strict for the sandbox.
        seccomp: Some(match privileged {
            true => profile(ProfileType::Unconfined, ""),
            false => profile(ProfileType::RuntimeDefault, ""),
        }),
        ..Default::default()
    }
}

/// `target` is the container whose process namespace an ephemeral container joins.
pub fn container_security(
    pod: &Pod,
    container: &Container,
    image: &Image,
    target: Option<&str>,
    settings: &Settings,
) -> Result<LinuxContainerSecurityContext, SecurityError> {
    let shared = pod::spec(pod).security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let privileged = own.privileged.unwrap_or(false);
    let user = own.run_as_user.or(shared.run_as_user);
    verify_range(pod, container, user, image)?;
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) {
        verify_non_root(pod, container, user, image)?;
    }
    let (run_as_user, run_as_username) = match (user, image.uid) {
        (Some(value), _) => (Some(Int64Value { value }), String::new()),
        (None, Some(from_image)) => (Some(from_image), String::new()),
        (None, None) => (None, image.username.clone()),
    };
    let group = own.run_as_group.or(shared.run_as_group);
    let mut namespace_options = namespaces(pod, settings);
    if let Some(target) = target {
        namespace_options.pid = NamespaceMode::Target as i32;
        namespace_options.target_id = target.to_string();
    }
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| if unmasked { Vec::new() } else { list.iter().map(ToString::to_string).collect() };
    let apparmor =
        apparmor_profile(pod, container, own.app_armor_profile.as_ref().or(shared.app_armor_profile.as_ref()))?;
    let seccomp = seccomp(own.seccomp_profile.as_ref().or(shared.seccomp_profile.as_ref()), settings)?;
    Ok(LinuxContainerSecurityContext {
        capabilities: capabilities(&own),
        privileged,
        namespace_options: Some(namespace_options),
        selinux_options: own.se_linux_options.as_ref().or(shared.se_linux_options.as_ref()).map(selinux),
        run_as_user,
        run_as_username,
        run_as_group: group.map(|value| Int64Value { value }),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(pod),
        supplemental_groups_policy: groups_policy(pod),
        no_new_privs: no_new_privileges(&own),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(if privileged { profile(ProfileType::Unconfined, "") } else { seccomp }),
        apparmor_profile: if privileged { String::new() } else { apparmor.clone().unwrap_or_default() },
        apparmor: apparmor.filter(|_| !privileged).map(|name| match name.as_str() {
            "runtime/default" => profile(ProfileType::RuntimeDefault, ""),
            "unconfined" => profile(ProfileType::Unconfined, ""),
            local => profile(ProfileType::Localhost, local.trim_start_matches("localhost/")),
        }),
        ..Default::default()
    })
}

/// User ids beyond 31 bits could wrap around in the runtime, even to root.
fn verify_range(pod: &Pod, container: &Container, user: Option<i64>, image: &Image) -> Result<(), SecurityError> {
    match user.or(image.uid.map(|user| user.value)) {
        Some(user) if i32::try_from(user).is_ok_and(|user| user >= 0) => Ok(()),
        Some(user) => Err(SecurityError::UserRange { user, pod: pod_title(pod), container: container.name.clone() }),
        None => Ok(()),
    }
}

fn pod_title(pod: &Pod) -> String {
    format!("{}_{}({})", pod::name(pod), pod::namespace(pod), pod::uid(pod))
}

fn verify_non_root(pod: &Pod, container: &Container, user: Option<i64>, image: &Image) -> Result<(), SecurityError> {
    let title = pod_title(pod);
    let container = container.name.clone();
    match (user, image.uid, image.username.as_str()) {
        (Some(0), ..) => Err(SecurityError::RunAsRootRequested { pod: title, container }),
        (Some(_), ..) => Ok(()),
        (None, Some(Int64Value { value: 0 }), _) => Err(SecurityError::RunsAsRoot { pod: title, container }),
        (None, Some(_), _) => Ok(()),
        (None, None, "") => Err(SecurityError::RunsAsRoot { pod: title, container }),
        (None, None, user) => Err(SecurityError::UnknownUser { user: user.to_string(), pod: title, container }),
    }
}

/// Only an explicit `false` prevents privilege escalation; privileged containers are not restricted.
fn no_new_privileges(own: &SecurityContext) -> bool {
    let administers = own
        .capabilities
        .iter()
        .flat_map(|capabilities| capabilities.add.iter().flatten())
        .any(|name| matches!(name.as_str(), "CAP_SYS_ADMIN" | "SYS_ADMIN"));
    own.allow_privilege_escalation == Some(false) && own.privileged != Some(true) && !administers
}

fn capabilities(own: &SecurityContext) -> Option<Capability> {
    let chosen = own.capabilities.as_ref()?;
    Some(Capability {
        add_capabilities: chosen.add.clone().unwrap_or_default(),
        drop_capabilities: chosen.drop.clone().unwrap_or_default(),
    })
}

/// Every process must have the volumes' owner group.
fn groups(pod: &Pod) -> Vec<i64> {
    let Some(context) = &pod::spec(pod).security_context else { return Vec::new() };
    let mut groups: Vec<i64> = context.supplemental_groups.iter().flatten().copied().collect();
    groups.extend(context.fs_group);
    groups
}

fn groups_policy(pod: &Pod) -> i32 {
    let context = pod::spec(pod).security_context.as_ref();
    let strict = context.and_then(|context| context.supplemental_groups_policy.as_deref()) == Some("Strict");
    (if strict { SupplementalGroupsPolicy::Strict } else { SupplementalGroupsPolicy::Merge }) as i32
}

fn profile(kind: ProfileType, reference: &str) -> SecurityProfile {
    SecurityProfile { profile_type: kind as i32, localhost_ref: reference.to_string() }
}

/// An invalid profile is an error: without it the container would run unconfined.
fn seccomp(chosen: Option<&SeccompProfile>, settings: &Settings) -> Result<SecurityProfile, SecurityError> {
    let Some(chosen) = chosen else {
        let kind = if settings.seccomp_default { ProfileType::RuntimeDefault } else { ProfileType::Unconfined };
        return Ok(profile(kind, ""));
    };
    let name = chosen.localhost_profile.as_deref().unwrap_or_default();
    match chosen.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, "")),
        "Unconfined" => Ok(profile(ProfileType::Unconfined, "")),
        "Localhost" if name.is_empty() => Err(SecurityError::NoSeccompProfile),
        "Localhost" => {
            let path = beneath::join(&settings.seccomp_profiles, name)
                .ok_or_else(|| SecurityError::SeccompPath(name.to_string()))?;
            Ok(profile(ProfileType::Localhost, &path.to_string_lossy()))
        }
        other => Err(SecurityError::SeccompType(other.to_string())),
    }
}

/// From the field, or from the annotation it replaced. None leaves the choice to the runtime.
fn apparmor_profile(
    pod: &Pod,
    container: &Container,
    chosen: Option<&AppArmorProfile>,
) -> Result<Option<String>, SecurityError> {
    let local = |name: &str| match name.trim().is_empty() {
        true => Err(SecurityError::NoAppArmorProfile),
        false => Ok(Some(format!("localhost/{name}"))),
    };
    if let Some(chosen) = chosen {
        return match chosen.type_.as_str() {
            "RuntimeDefault" => Ok(Some("runtime/default".into())),
            "Unconfined" => Ok(Some("unconfined".into())),
            "Localhost" => local(chosen.localhost_profile.as_deref().unwrap_or_default()),
            other => Err(SecurityError::AppArmorType(other.to_string())),
        };
    }
    let key = format!("container.apparmor.security.beta.kubernetes.io/{}", container.name);
    match pod::annotation(pod, &key) {
        None | Some("") => Ok(None),
        Some(known @ ("runtime/default" | "unconfined")) => Ok(Some(known.to_string())),
        Some(other) => match other.strip_prefix("localhost/") {
            Some(name) => local(name),
            None => Err(SecurityError::AppArmorType(other.to_string())),
        },
    }
}

fn selinux(options: &SELinuxOptions) -> SelinuxOption {
    SelinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        kind: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(
        pod_context: serde_json::Value,
        own: serde_json::Value,
        image: Image,
    ) -> Result<LinuxContainerSecurityContext, SecurityError> {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u" },
            "spec": { "securityContext": pod_context, "containers": [{ "name": "a", "securityContext": own }] } }))
        .expect("a pod");
        let settings = Settings::new("node", "/data", "/run/x.sock".into());
        container_security(&pod, &pod::spec(&pod).containers[0], &image, None, &settings)
    }

    #[test]
    fn root_is_refused_where_it_must_not_be() {
        let cases = [
            (json!({ "runAsNonRoot": true }), json!({}), Image::default(), false),
            (json!({ "runAsNonRoot": true }), json!({ "runAsUser": 0 }), Image::default(), false),
            (json!({ "runAsNonRoot": true }), json!({ "runAsUser": 5 }), Image::default(), true),
            (json!({ "runAsNonRoot": true }), json!({ "runAsNonRoot": false }), Image::default(), true),
            (
                json!({ "runAsNonRoot": true }),
                json!({}),
                Image { username: "nobody".into(), ..Default::default() },
                false,
            ),
            (
                json!({ "runAsNonRoot": true }),
                json!({}),
                Image { uid: Some(Int64Value { value: 7 }), ..Default::default() },
                true,
            ),
        ];
        for (shared, own, image, allowed) in cases {
            let title = format!("{shared} {own}");
            assert_eq!(check(shared, own, image).is_ok(), allowed, "{title}");
        }
    }

    #[test]
    fn the_container_overrides_the_pod() {
        let context = check(
            json!({ "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4],
                "seccompProfile": { "type": "RuntimeDefault" } }),
            json!({ "runAsUser": 9, "allowPrivilegeEscalation": false, "procMount": "Unmasked",
                "capabilities": { "add": ["NET_ADMIN"], "drop": ["ALL"] } }),
            Image::default(),
        )
        .expect("allowed");
        assert_eq!(context.run_as_user, Some(Int64Value { value: 9 }));
        assert_eq!(context.run_as_group, Some(Int64Value { value: 2 }));
        assert_eq!(context.supplemental_groups, [4, 3]);
        assert!(context.no_new_privs && context.masked_paths.is_empty());
        assert_eq!(context.seccomp.map(|profile| profile.profile_type), Some(ProfileType::RuntimeDefault as i32));
    }

    #[test]
    fn a_profile_that_is_asked_for_is_never_dropped() {
        let seccomp = |value: serde_json::Value| {
            let context = check(json!({}), json!({ "seccompProfile": value }), Image::default());
            context.map(|context| context.seccomp.map(|profile| (profile.profile_type, profile.localhost_ref)))
        };
        let named = Some((ProfileType::Localhost as i32, "/data/seccomp/a/b.json".to_string()));
        assert_eq!(seccomp(json!({ "type": "Localhost", "localhostProfile": "a/b.json" })), Ok(named));
        assert_eq!(seccomp(json!({ "type": "Localhost" })), Err(SecurityError::NoSeccompProfile));
        for name in ["", "/etc/passwd", "../x", "a/../../x"] {
            assert!(seccomp(json!({ "type": "Localhost", "localhostProfile": name })).is_err(), "{name}");
        }
        assert!(seccomp(json!({ "type": "localhost", "localhostProfile": "a" })).is_err());
        let apparmor = |value: serde_json::Value| {
            let context = check(json!({ "appArmorProfile": value }), json!({}), Image::default());
            context.map(|context| context.apparmor_profile)
        };
        assert_eq!(apparmor(json!({ "type": "Localhost", "localhostProfile": "x" })), Ok("localhost/x".to_string()));
        assert_eq!(apparmor(json!({ "type": "Localhost" })), Err(SecurityError::NoAppArmorProfile));
        assert!(apparmor(json!({ "type": "Localhost", "localhostProfile": " " })).is_err());
        assert!(apparmor(json!({ "type": "runtimeDefault" })).is_err());
    }

    #[test]
    fn the_users_of_an_image_are_kept() {
        let user = |value| Image { uid: Some(Int64Value { value }), ..Default::default() };
        let kept = check(json!({}), json!({}), user(1000)).expect("allowed");
        assert_eq!(kept.run_as_user, Some(Int64Value { value: 1000 }));
        assert!(check(json!({ "runAsNonRoot": true }), json!({}), user(0)).is_err());
        let named = |name: &str| Image { username: name.into(), ..Default::default() };
        for name in ["root", "4294967296", "nobody"] {
            assert!(check(json!({ "runAsNonRoot": true }), json!({}), named(name)).is_err(), "{name}");
        }
        for uid in [4_294_967_296, 2_147_483_648, -1] {
            assert!(check(json!({}), json!({}), user(uid)).is_err(), "{uid} may become root");
        }
        assert_eq!(check(json!({}), json!({}), named("app")).map(|own| own.run_as_username), Ok("app".to_string()));
    }
}
