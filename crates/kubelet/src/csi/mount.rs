//! Makes a CSI volume available to a pod.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

use super::drivers::{Capabilities, Driver, Drivers};
use super::error::{CsiError, Step, plugin_text};
use super::policy::DriverPolicy;
use super::state::{Condition, Progress, VolumeState};
use super::volume::CsiVolume;
use super::{Csi, cluster};
use crate::objects::Notify;
use crate::pod;

/// How often a driver that requires it is asked to publish again, and a volume's size and health are checked.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(60);

pub struct MountRequest<'a> {
    pub pod: &'a Pod,
    pub volume: &'a CsiVolume,
    /// The volume's name in the pod.
    pub name: &'a str,
    /// The claim, of a persistent volume.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// Called when it is worth to try again.
    pub notify: Notify,
}

#[derive(Debug, Default)]
pub struct MountResult {
    pub path: PathBuf,
    pub read_only: bool,
    /// Mount again after this time, although nothing changed.
    pub again_after: Option<Duration>,
    /// The files have the SELinux label that the pod needs.
    pub labelled: bool,
    pub notes: Vec<Note>,
}

/// An event about the pod, and about its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    pub on_claim: bool,
}

/// One mount and what it needs, while the volume is locked.
pub(super) struct Mount<'a> {
    pub request: &'a MountRequest<'a>,
    pub volume: &'a CsiVolume,
    pub driver: Arc<Driver>,
    pub capabilities: Capabilities,
    pub policy: DriverPolicy,
    pub publish_context: BTreeMap<String, String>,
    pub options: Vec<String>,
    pub group: Option<i64>,
    pub labelled: bool,
}

impl Mount<'_> {
    pub fn uid(&self) -> &str {
        pod::uid(self.request.pod)
    }

    pub fn failed(&self, step: Step, text: impl Into<String>) -> CsiError {
        failed(self.volume, step, text)
    }

    /// The step of staging.
    pub fn stage_step(&self) -> Step {
        if self.volume.block { Step::SetUpDevice } else { Step::MountDevice }
    }

    /// The step of publishing.
    pub fn publish_step(&self) -> Step {
        if self.volume.block { Step::MapPodDevice } else { Step::SetUp }
    }
}

fn failed(volume: &CsiVolume, step: Step, text: impl Into<String>) -> CsiError {
    CsiError { step, spec_name: volume.spec_name.clone(), text: text.into(), waits: false, limit_exceeded: false }
}

impl Csi {
    /// Stages the volume on this node and publishes it for the pod, as far as that is not done yet. Call it again until
    /// it succeeds, or undo it with [`Csi::unmount_pod`].
    pub async fn mount(&self, request: &MountRequest<'_>) -> Result<MountResult, CsiError> {
        let (volume, uid) = (request.volume, pod::uid(request.pod));
        let step = if volume.block { Step::SetUpDevice } else { Step::SetUp };
        let Some(policy) = self.policy(&volume.id.driver).await else {
            let text = "timed out waiting for the list of CSIDriver objects";
            return Err(failed(volume, step, plugin_text(text)));
        };
        self.add_user(volume, &policy, uid);
        let _operation = self.state.lock(&volume.id).await;
        if volume.is_exclusive() && self.state.is_used_elsewhere(&volume.id, uid) {
            let text = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            return Err(failed(volume, step, text));
        }
        let is_published = self.state.published(&volume.id, uid) == Progress::Done;
        let driver = match self.drivers.get(&volume.id.driver) {
            Some(driver) => driver,
            // A published volume stays usable without its driver.
            None if is_published => return Ok(self.published(volume, uid, false)),
            None => return Err(self.driver_missing(request)),
        };
        let publish_context = match policy.is_attachable(volume) && !is_published {
            true => self.attached(request, &policy).await?,
            false => BTreeMap::new(),
        };
        let capabilities = match driver.capabilities().await {
            Ok(capabilities) => capabilities,
            Err(_) if is_published => return Ok(self.published(volume, uid, true)),
            Err(error) => return Err(failed(volume, step, error.rpc_message())),
        };
        let context = pod::spec(request.pod).security_context.as_ref();
        let group = context.and_then(|context| context.fs_group);
        let enabled = Path::new("/sys/fs/selinux/enforce").exists();
        let label = enabled.then(|| se_linux_option(request.pod, request.name, volume, &policy)).flatten();
        let options = volume.mount_options.iter().cloned().chain(label.clone()).collect();
        let labelled = label.is_some();
        let mut mount =
            Mount { request, volume, driver, capabilities, policy, publish_context, options, group, labelled };
        self.run(&mut mount, is_published).await
    }

    async fn run(&self, mount: &mut Mount<'_>, is_published: bool) -> Result<MountResult, CsiError> {
        let (volume, uid) = (mount.volume, mount.uid().to_string());
        let mut notes = Vec::new();
        if !is_published {
            self.stage(mount).await?;
            self.publish(mount, false).await?;
            if volume.block {
                notes = self.map_notes(volume, &uid);
            }
        } else if mount.policy.requires_republish {
            if mount.policy.is_attachable(volume) {
                let context = cluster::attachment(&self.client, &volume.id, &self.node_name).await;
                mount.publish_context = context.map_err(|text| mount.failed(Step::WaitForAttach, text))?;
            }
            self.publish(mount, true).await?;
        }
        notes.extend(self.expand(mount, is_published).await?);
        let may_fail = mount.capabilities.measures() && mount.capabilities.reports_condition();
        if is_published && may_fail {
            notes.extend(self.health(mount).await);
        }
        let may_grow = volume.is_persistent() && mount.capabilities.expands();
        let checks_again = mount.policy.requires_republish || may_grow || may_fail;
        let mut result = self.published(volume, &uid, checks_again);
        result.labelled = mount.labelled;
        result.notes = notes;
        Ok(result)
    }

    fn published(&self, volume: &CsiVolume, uid: &str, checks_again: bool) -> MountResult {
        let path = match volume.block {
            true => self.paths.device_publish(&volume.spec_name, uid),
            false => self.paths.publish(uid, &volume.spec_name),
        };
        let again_after = checks_again.then_some(REPUBLISH_INTERVAL);
        MountResult { path, read_only: volume.read_only, again_after, ..Default::default() }
    }

    fn add_user(&self, volume: &CsiVolume, policy: &DriverPolicy, uid: &str) {
        let attachable = policy.is_attachable(volume);
        let fresh = VolumeState {
            spec_name: volume.spec_name.clone(),
            block: volume.block,
            persistent: volume.is_persistent(),
            attachable: Some(attachable),
            ..Default::default()
        };
        self.state.add_user(&volume.id, uid, fresh);
        if attachable && !self.state.is_reported(&volume.id.unique_name()) {
            self.in_use_changed.notify_one();
        }
    }

    fn driver_missing(&self, request: &MountRequest<'_>) -> CsiError {
        let volume = request.volume;
        let driver = volume.id.driver.clone();
        let missing = Drivers::missing(&driver);
        self.state.wait_for(Condition::Driver(driver), request.notify.clone());
        let (step, place) = match (volume.block, volume.is_persistent()) {
            (true, _) => (Step::SetUpDevice, "blockMapper.SetUpDevice failed to get CSI client"),
            (false, true) => (Step::MountDevice, "attacher.MountDevice failed to create newCsiDriverClient"),
            (false, false) => (Step::SetUp, "mounter.SetUpAt failed to get CSI client"),
        };
        failed(volume, step, plugin_text(format!("{place}: {missing}")))
    }

    /// Waits for the control plane: a volume may be used only while the node's status names it as in use, so that it is
    /// not detached meanwhile, and once the status names it as attached.
    async fn attached(
        &self,
        request: &MountRequest<'_>,
        policy: &DriverPolicy,
    ) -> Result<BTreeMap<String, String>, CsiError> {
        let volume = request.volume;
        if let Err(waits) = self.wait_for_attach(&volume.id.unique_name(), &volume.spec_name, &request.notify) {
            let limit_exceeded = policy.limit_period.is_some() && self.exceeds_limit(&volume.id).await;
            return Err(CsiError { limit_exceeded, ..waits });
        }
        let context = cluster::attachment(&self.client, &volume.id, &self.node_name).await;
        context.map_err(|text| failed(volume, Step::WaitForAttach, text))
    }

    /// Whether the node may use a volume, by its name in the node's status. If not yet, the pod's worker is notified then.
    pub fn wait_for_attach(&self, name: &str, spec_name: &str, notify: &Notify) -> Result<(), CsiError> {
        let waits = |text: String| {
            let (step, spec_name) = (Step::WaitForAttach, spec_name.to_string());
            Err(CsiError { step, spec_name, text, waits: true, limit_exceeded: false })
        };
        // Checked again after the wait was started, so that a change in between is not missed.
        let wait_for = |condition| self.state.wait_for(condition, notify.clone());
        if !self.state.is_reported(name) {
            wait_for(Condition::Reported(name.to_string()));
        }
        if !self.state.is_reported(name) {
            self.in_use_changed.notify_one();
            let text = "Volume has not been added to the list of VolumesInUse in the node's volume status";
            return waits(text.to_string());
        }
        if !self.is_attached(name) {
            wait_for(Condition::Attached(name.to_string()));
        }
        if !self.is_attached(name) {
            return waits(format!("volume {name} is not yet in node's status"));
        }
        Ok(())
    }

    fn map_notes(&self, volume: &CsiVolume, uid: &str) -> Vec<Note> {
        let map = self.paths.device_map(&volume.spec_name, uid);
        let link = self.paths.pod_devices(uid);
        let global = map.parent().unwrap_or(&map).display().to_string();
        [format!("globalMapPath \"{global}\""), format!("volumeMapPath \"{}\"", link.display())]
            .map(|detail| Note {
                warning: false,
                reason: "SuccessfulMountVolume",
                message: format!("MapVolume.MapPodDevice succeeded for volume \"{}\" {detail}", volume.spec_name),
                on_claim: false,
            })
            .to_vec()
    }
}

/// The mount option that labels all files of the volume at once, where the driver supports it, the pod does not want each file
/// labelled, and no other pod or container can use the volume with another label.
fn se_linux_option(pod: &Pod, name: &str, volume: &CsiVolume, policy: &DriverPolicy) -> Option<String> {
    let context = pod::spec(pod).security_context.as_ref();
    let change_policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
    if !policy.se_linux_mount || volume.block || !volume.is_exclusive() || change_policy == Some("Recursive") {
        return None;
    }
    let of_pod = context.and_then(|context| context.se_linux_options.as_ref());
    let spec = pod::spec(pod);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let users = containers.filter(|container| container.volume_mounts.iter().flatten().any(|mount| mount.name == name));
    let mut wanted = users
        .map(|container| container.security_context.as_ref().and_then(|own| own.se_linux_options.as_ref()).or(of_pod));
    let options = wanted.next().flatten()?;
    if wanted.any(|other| other != Some(options)) {
        return None;
    }
    let level = options.level.as_deref().filter(|level| !level.is_empty())?;
    let part = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_string());
    let (user, role) = (part(&options.user, "system_u"), part(&options.role, "object_r"));
    let kind = part(&options.type_, "container_file_t");
    let label = format!("{user}:{role}:{kind}:{level}");
    is_label(&label).then(|| format!("context=\"{label}\""))
}

/// Drivers join mount options, and some split them again whatever is quoted: the author's text must be only one of them. A comma
/// stands only between categories, as in `c1,c2`, which are no option of any file system.
fn is_label(text: &str) -> bool {
    let is_category =
        |part: &str| part.strip_prefix('c').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":.,_-".contains(&byte))
        && text.split(',').skip(1).all(is_category)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_label_is_one_option_however_drivers_split_it() {
        for (label, expected) in [
            ("u:r:t:s0", true),
            ("u:r:t:s0:c1,c2", true),
            ("u:r:t:s0:c1,c4.c7-s15:c0.c1023,c5", true),
            ("u:r:t:s0,suid,dev", false),
            ("u:r:t:s0:c1,dev", false),
            ("u,dev:r:t:s0", false),
            ("u:r:t:s0:c1,", false),
            ("u:r:t:s0:c1,c", false),
            ("u:r:t:s0 ", false),
        ] {
            assert_eq!(is_label(label), expected, "{label}");
        }
    }

    #[test]
    fn labels_are_mounted_only_where_they_are_needed() {
        let driver = json!({ "metadata": { "name": "d" }, "spec": { "seLinuxMount": true } });
        let policy = DriverPolicy::of(Some(&serde_json::from_value(driver).expect("a driver")));
        let volume = |mode: &str| {
            let volume = json!({ "metadata": { "name": "pv" }, "spec": { "accessModes": [mode],
                "csi": { "driver": "d", "volumeHandle": "h" } } });
            CsiVolume::persistent(&serde_json::from_value(volume).expect("a volume"), false).expect("a CSI volume")
        };
        let pod = |containers: Value, change: Value| -> Pod {
            let context = json!({ "seLinuxOptions": { "level": "s0:c1,c2" }, "seLinuxChangePolicy": change });
            let spec = json!({ "containers": containers, "securityContext": context });
            serde_json::from_value(json!({ "spec": spec })).expect("a pod")
        };
        let user = json!({ "name": "c", "volumeMounts": [{ "name": "data", "mountPath": "/d" }] });
        let mut own = user.clone();
        own["securityContext"] = json!({ "seLinuxOptions": { "level": "s0:c3", "type": "t" } });
        let mut hostile = user.clone();
        hostile["securityContext"] = json!({ "seLinuxOptions": { "level": "s0\",dev,suid,bind,context=\"x" } });
        let mut with_options = user.clone();
        with_options["securityContext"] = json!({ "seLinuxOptions": { "level": "s0,suid,dev" } });
        let (exclusive, shared) = (volume("ReadWriteOncePod"), volume("ReadWriteMany"));
        let (of_pod, of_container) =
            ("context=\"system_u:object_r:container_file_t:s0:c1,c2\"", "context=\"system_u:object_r:t:s0:c3\"");
        let (any, none) = (Value::Null, DriverPolicy::of(None));
        for (pod, volume, policy, expected) in [
            (pod(json!([user]), any.clone()), &exclusive, &policy, Some(of_pod)),
            (pod(json!([user, { "name": "other" }]), json!("MountOption")), &exclusive, &policy, Some(of_pod)),
            (pod(json!([own]), any.clone()), &exclusive, &policy, Some(of_container)),
            (pod(json!([user, own]), any.clone()), &exclusive, &policy, None),
            (pod(json!([user]), json!("Recursive")), &exclusive, &policy, None),
            (pod(json!([user]), any.clone()), &shared, &policy, None),
            (pod(json!([user]), any.clone()), &exclusive, &none, None),
            (pod(json!([hostile]), any.clone()), &exclusive, &policy, None),
            (pod(json!([with_options]), any.clone()), &exclusive, &policy, None),
        ] {
            assert_eq!(se_linux_option(&pod, "data", volume, policy).as_deref(), expected, "{pod:?}");
        }
    }
}
