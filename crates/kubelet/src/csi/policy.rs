//! The requirements of a driver: from its CSIDriver object, or the defaults if there is none.

use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};

use super::volume::{CsiVolume, Lifecycle};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriverPolicy {
    pub attach_required: bool,
    pub pod_info: bool,
    fs_group: Option<String>,
    /// None without a CSIDriver object.
    modes: Option<Vec<String>>,
    pub token_requests: Vec<TokenRequest>,
    pub tokens_in_secrets: bool,
    pub requires_republish: bool,
    pub se_linux_mount: bool,
    /// How often the driver is asked how many volumes the node takes.
    pub limit_period: Option<Duration>,
}

impl DriverPolicy {
    pub fn of(driver: Option<&CSIDriver>) -> Self {
        let Some(spec) = driver.map(|driver| &driver.spec) else {
            return Self { attach_required: true, ..Self::default() };
        };
        Self {
            attach_required: spec.attach_required != Some(false),
            pod_info: spec.pod_info_on_mount == Some(true),
            fs_group: spec.fs_group_policy.clone(),
            modes: Some(spec.volume_lifecycle_modes.clone().unwrap_or_default()),
            token_requests: spec.token_requests.clone().unwrap_or_default(),
            tokens_in_secrets: spec.service_account_token_in_secrets == Some(true),
            requires_republish: spec.requires_republish == Some(true),
            se_linux_mount: spec.se_linux_mount == Some(true),
            limit_period: spec
                .node_allocatable_update_period_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
        }
    }

    /// Whether the control plane attaches this volume before the node may use it.
    pub fn is_attachable(&self, volume: &CsiVolume) -> bool {
        volume.is_persistent() && self.attach_required
    }

    /// Why the driver does not serve volumes of this lifecycle.
    pub fn mode_problem(&self, driver: &str, lifecycle: Lifecycle) -> Option<String> {
        let mode = lifecycle.name();
        match &self.modes {
            None if lifecycle == Lifecycle::Persistent => None,
            None => Some(format!("volume mode \"{mode}\" not supported by driver {driver} (no CSIDriver object)")),
            Some(modes) if modes.iter().any(|known| known == mode) => None,
            Some(modes) => {
                let quoted: Vec<String> = modes.iter().map(|mode| format!("\"{mode}\"")).collect();
                Some(format!(
                    "volume mode \"{mode}\" not supported by driver {driver} (only supports [{}])",
                    quoted.join(" ")
                ))
            }
        }
    }

    /// Whether the kubelet changes the group of the volume's files. A driver that does so itself is asked instead.
    pub fn applies_group(&self, volume: &CsiVolume) -> bool {
        if volume.read_only {
            return false;
        }
        match self.fs_group.as_deref() {
            Some("None") => false,
            Some("File") => true,
            _ if volume.fs_type.is_empty() => false,
            // Inline volumes have one writer.
            _ => !volume.is_persistent() || volume.has_single_writer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(spec: serde_json::Value) -> DriverPolicy {
        let driver: CSIDriver =
            serde_json::from_value(json!({ "metadata": { "name": "d" }, "spec": spec })).expect("a driver");
        DriverPolicy::of(Some(&driver))
    }

    fn volume(fs_type: &str, modes: &[&str], read_only: bool) -> CsiVolume {
        let volume = json!({ "metadata": { "name": "pv" }, "spec": { "accessModes": modes,
            "csi": { "driver": "d", "volumeHandle": "h", "fsType": fs_type } } });
        CsiVolume::persistent(&serde_json::from_value(volume).expect("a volume"), read_only).expect("a CSI volume")
    }

    #[test]
    fn groups_are_applied_as_the_driver_says() {
        for (given, volume, expected) in [
            ("None", volume("ext4", &["ReadWriteOnce"], false), false),
            ("File", volume("", &["ReadWriteMany"], false), true),
            ("File", volume("", &["ReadWriteMany"], true), false),
            ("ReadWriteOnceWithFSType", volume("ext4", &["ReadWriteOnce"], false), true),
            ("ReadWriteOnceWithFSType", volume("ext4", &["ReadWriteOncePod"], false), true),
            ("ReadWriteOnceWithFSType", volume("", &["ReadWriteOnce"], false), false),
            ("ReadWriteOnceWithFSType", volume("ext4", &["ReadWriteMany"], false), false),
        ] {
            assert_eq!(
                policy(json!({ "fsGroupPolicy": given })).applies_group(&volume),
                expected,
                "{given} {volume:?}"
            );
        }
        assert!(DriverPolicy::of(None).applies_group(&volume("ext4", &["ReadWriteOnce"], false)));
    }

    #[test]
    fn lifecycles_must_be_supported() {
        let none = DriverPolicy::of(None);
        assert_eq!(none.mode_problem("d", Lifecycle::Persistent), None);
        assert_eq!(
            none.mode_problem("d", Lifecycle::Ephemeral).as_deref(),
            Some("volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)")
        );
        let some = policy(json!({ "volumeLifecycleModes": ["Persistent"] }));
        assert_eq!(some.mode_problem("d", Lifecycle::Persistent), None);
        assert_eq!(
            some.mode_problem("d", Lifecycle::Ephemeral).as_deref(),
            Some("volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])")
        );
        assert!(none.is_attachable(&volume("", &[], false)));
        assert!(!policy(json!({ "attachRequired": false })).is_attachable(&volume("", &[], false)));
    }
}
