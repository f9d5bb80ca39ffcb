//! Expands a volume on the node after the control plane has expanded it, and reports the new size in the claim.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::jiff::Timestamp;
use knarr_client::quantity::value;
use knarr_client::time::truncated;
use knarr_csi::messages::{CapacityRange, NodeExpandVolumeRequest, secrets};
use knarr_csi::{CallError, Code};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::error::{CsiError, Step, is_final};
use super::mount::{Mount, Note};
use super::{Csi, cluster};
use crate::api_text::api_text;

/// The conditions that describe an expansion.
const RESIZE_CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];
/// Set by the control plane where the node has nothing to do.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// What is known about a volume's size.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes<'a> {
    /// The size of the persistent volume.
    volume: i64,
    /// The size in the claim's status.
    claim: i64,
    /// What the claim's status says about the expansion.
    status: &'a str,
    /// What this node knows.
    node: Option<i64>,
    /// Several nodes use the volume, and each must expand it.
    shared: bool,
    not_required: bool,
    offline_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Nothing,
    /// Nothing is left to do here; remember the size.
    AlreadyDone,
    /// `report` is false if another node already reported the size.
    Expand {
        report: bool,
    },
}

fn decide(sizes: &Sizes<'_>, in_use: bool) -> Decision {
    let known = sizes.node.unwrap_or(sizes.claim);
    if sizes.volume <= 0 || known >= sizes.volume || (in_use && sizes.offline_only) {
        return Decision::Nothing;
    }
    let is_reported = sizes.claim >= sizes.volume && sizes.status.is_empty();
    match sizes.status {
        _ if is_reported && sizes.shared && !sizes.not_required => Decision::Expand { report: false },
        _ if is_reported => Decision::AlreadyDone,
        "NodeResizePending" | "NodeResizeInProgress" => Decision::Expand { report: true },
        _ => Decision::Nothing,
    }
}

fn sizes<'a>(mount: &Mount<'_>, claim: &'a PersistentVolumeClaim, node: Option<i64>, offline_only: bool) -> Sizes<'a> {
    let status = claim.status.as_ref();
    let capacity = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
    let resize = status.and_then(|status| status.allocated_resource_statuses.as_ref()?.get("storage"));
    let annotations = claim.metadata.annotations.as_ref();
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    Sizes {
        volume: mount.volume.capacity.as_ref().map_or(0, value),
        claim: capacity.map_or(0, value),
        status: resize.map(String::as_str).unwrap_or_default(),
        node,
        shared: modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany")),
        not_required: annotations.is_some_and(|annotations| annotations.contains_key(NOT_REQUIRED)),
        offline_only,
    }
}

impl Csi {
    /// Expands a published volume if the claim waits for that. `in_use` means that containers may already use it.
    pub(super) async fn expand(&self, mount: &Mount<'_>, in_use: bool) -> Result<Vec<Note>, CsiError> {
        let volume = mount.volume;
        let Some(claim) = mount.request.claim.filter(|_| !volume.read_only) else { return Ok(Vec::new()) };
        let known = self.state.get(&volume.id).unwrap_or_default();
        let sizes = sizes(mount, claim, known.size, known.expand_offline_only);
        match decide(&sizes, in_use) {
            Decision::Nothing => {
                let size = known.size.unwrap_or(sizes.claim);
                self.state.update(&volume.id, |volume| volume.size = Some(size));
                Ok(Vec::new())
            }
            Decision::AlreadyDone => {
                self.state.update(&volume.id, |volume| volume.size = Some(sizes.volume));
                Ok(Vec::new())
            }
            Decision::Expand { report } => {
                let result = self.expand_now(mount, claim, &sizes, report).await;
                match result {
                    // Containers keep using the volume; the next check tries again.
                    Err(text) if in_use => Ok(vec![resize_failed(&volume.spec_name, &text)]),
                    result => result.map_err(|text| {
                        let step = if volume.block { Step::ExpandDevice } else { Step::Expand };
                        mount.failed(step, text)
                    }),
                }
            }
        }
    }

    async fn expand_now(
        &self,
        mount: &Mount<'_>,
        claim: &PersistentVolumeClaim,
        sizes: &Sizes<'_>,
        report: bool,
    ) -> Result<Vec<Note>, String> {
        let volume = mount.volume;
        let marked = match report && sizes.status != "NodeResizeInProgress" {
            true => {
                let status = json!({ "allocatedResourceStatuses": { "storage": "NodeResizeInProgress" } });
                Some(self.patch_claim(claim, status, true).await?)
            }
            false => None,
        };
        let claim = marked.as_ref().unwrap_or(claim);
        if !mount.capabilities.expands() {
            let text = format!("NodeExpand is not supported by the CSI driver {}", volume.id.driver);
            // Another node has expanded it, and this one has nothing to do for it.
            if !report {
                self.state.update(&volume.id, |known| known.size = Some(sizes.volume));
                return Ok(Vec::new());
            }
            return Err(text);
        }
        match self.call_expand(mount, sizes.volume).await? {
            Ok(()) => {}
            Err(error) => return self.expand_failed(mount, claim, &error).await.map(|()| Vec::new()),
        }
        self.state.update(&volume.id, |known| {
            known.size = Some(sizes.volume);
            known.expand_failed = false;
        });
        if report {
            let size = volume.capacity.as_ref().map(|size| size.0.clone()).unwrap_or_default();
            self.patch_claim(claim, finished(claim, &size), true)
                .await
                .map_err(|text| format!("mountVolume.NodeExpandVolume update pvc status failed: {text}"))?;
        }
        let message =
            format!("MountVolume.NodeExpandVolume succeeded for volume \"{}\" {}", volume.spec_name, self.node_name);
        let note = Note { warning: false, reason: "FileSystemResizeSuccessful", message, on_claim: false };
        Ok(vec![note.clone(), Note { on_claim: true, ..note }])
    }

    async fn call_expand(&self, mount: &Mount<'_>, size: i64) -> Result<Result<(), CallError>, String> {
        let volume = mount.volume;
        let credentials = cluster::secret(&self.client, volume.expand_secret.as_ref()).await.map_err(|text| {
            let secret = volume.expand_secret.clone().unwrap_or_default();
            let (namespace, name) = (secret.namespace.unwrap_or_default(), secret.name.unwrap_or_default());
            format!("expander.NodeExpand failed to get NodeExpandSecretRef {namespace}/{name}: {text}")
        })?;
        let path = match volume.block {
            true => self.paths.device_publish(&volume.spec_name, mount.uid()),
            false => self.paths.publish(mount.uid(), &volume.spec_name),
        };
        let staging = mount
            .capabilities
            .stages()
            .then(|| self.stage_path(&volume.id, &volume.spec_name, volume.block).to_string_lossy().into_owned());
        let request = NodeExpandVolumeRequest {
            volume_id: volume.id.handle.clone(),
            volume_path: path.to_string_lossy().into_owned(),
            capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
            staging_target_path: staging.unwrap_or_default(),
            volume_capability: Some(mount.capabilities.capability(volume, &volume.mount_options, None)),
            secrets: secrets(credentials.0),
        };
        let step = crate::journey_events::expanded(mount.request.pod, &volume.spec_name, &volume.id.driver);
        let expanded = mount.driver.client.node_expand_volume(request).await;
        crate::journey_events::outcome(&step, &expanded);
        Ok(expanded.map(drop))
    }

    /// Says in the claim why it was not expanded. Ok if the volume can be used nevertheless.
    async fn expand_failed(
        &self,
        mount: &Mount<'_>,
        claim: &PersistentVolumeClaim,
        error: &CallError,
    ) -> Result<(), String> {
        let volume = mount.volume;
        let text = match is_infeasible(error) {
            true => format!("Expander.NodeExpand failed to expand the volume {error}"),
            false => format!("Expander.NodeExpand failed to expand the volume : {error}"),
        };
        if is_final(error) {
            let known = self.state.get(&volume.id).unwrap_or_default();
            let requested =
                claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
            let changed = requested.map(value) != volume.capacity.as_ref().map(value);
            let give_up = is_infeasible(error) || (changed && known.expand_failed);
            self.state.update(&volume.id, |known| known.expand_failed = true);
            let mut status = json!({ "conditions": with_error(claim, &text, Timestamp::now()) });
            if give_up {
                status["allocatedResourceStatuses"] = json!({ "storage": "NodeResizeInfeasible" });
            }
            if let Err(error) = self.patch_claim(claim, status, false).await {
                tracing::warn!(error, volume = volume.spec_name, "cannot report a failed expansion in the claim");
            }
        }
        if error.code() == Code::FailedPrecondition {
            self.state.update(&volume.id, |known| known.expand_offline_only = true);
            return Ok(());
        }
        Err(text)
    }

    async fn patch_claim(
        &self,
        claim: &PersistentVolumeClaim,
        status: Value,
        unchanged: bool,
    ) -> Result<PersistentVolumeClaim, String> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let mut change = json!({ "status": status });
        if unchanged {
            change["metadata"] = json!({ "resourceVersion": claim.metadata.resource_version });
        }
        let patched = claims.patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await;
        patched.map_err(|error| format!("patchPVCStatus failed to patch PVC \"{name}\": {}", api_text(&error)))
    }
}

fn resize_failed(spec_name: &str, text: &str) -> Note {
    let message = format!("NodeExpandVolume.NodeExpandVolume failed for volume \"{spec_name}\" : {text}");
    Note { warning: true, reason: "VolumeResizeFailed", message, on_claim: false }
}

/// The driver will never be able to do this.
fn is_infeasible(error: &CallError) -> bool {
    matches!(error.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound) && is_final(error)
}

fn other_conditions(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
    let conditions = claim.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten()
}

/// The status of a claim whose volume is expanded.
fn finished(claim: &PersistentVolumeClaim, size: &str) -> Value {
    let conditions: Vec<_> =
        other_conditions(claim).filter(|condition| !RESIZE_CONDITIONS.contains(&condition.type_.as_str())).collect();
    json!({
        "capacity": { "storage": size },
        "allocatedResourceStatuses": { "storage": null },
        "conditions": conditions,
    })
}

fn with_error(claim: &PersistentVolumeClaim, text: &str, now: Timestamp) -> Vec<PersistentVolumeClaimCondition> {
    let mut conditions: Vec<_> = other_conditions(claim).cloned().collect();
    let known = conditions.iter().any(|condition| condition.type_ == "NodeResizeError" && condition.status == "True");
    if !known {
        conditions.retain(|condition| condition.type_ != "NodeResizeError");
        conditions.push(PersistentVolumeClaimCondition {
            type_: "NodeResizeError".into(),
            status: "True".into(),
            last_transition_time: Some(truncated(now)),
            message: Some(format!("failed to expand pvc with {text}")),
            ..Default::default()
        });
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_expanded_once_the_control_plane_is_done() {
        let pending = Sizes { volume: 2, claim: 1, status: "NodeResizePending", ..Default::default() };
        let reported = Sizes { volume: 2, claim: 2, ..Default::default() };
        let expand = Decision::Expand { report: true };
        for (sizes, in_use, expected) in [
            (pending, false, expand),
            (pending, true, expand),
            (Sizes { status: "NodeResizeInProgress", ..pending }, true, expand),
            (Sizes { status: "ControllerResizeInProgress", ..pending }, true, Decision::Nothing),
            (Sizes { status: "NodeResizeInfeasible", ..pending }, true, Decision::Nothing),
            (Sizes { status: "", ..pending }, true, Decision::Nothing),
            (Sizes { offline_only: true, ..pending }, true, Decision::Nothing),
            (Sizes { offline_only: true, ..pending }, false, expand),
            (reported, true, Decision::Nothing),
            (Sizes { node: Some(1), ..reported }, true, Decision::AlreadyDone),
            (Sizes { node: Some(1), shared: true, ..reported }, true, Decision::Expand { report: false }),
            (Sizes { node: Some(1), shared: true, not_required: true, ..reported }, true, Decision::AlreadyDone),
            (Sizes { node: Some(2), shared: true, ..reported }, true, Decision::Nothing),
            (Sizes::default(), true, Decision::Nothing),
        ] {
            assert_eq!(decide(&sizes, in_use), expected, "{sizes:?} {in_use}");
        }
    }

    #[test]
    fn a_finished_expansion_leaves_only_foreign_conditions() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({ "status": { "conditions": [
            { "type": "FileSystemResizePending", "status": "True" }, { "type": "Resizing", "status": "True" },
            { "type": "Other", "status": "True" }, { "type": "NodeResizeError", "status": "True" }] } }))
        .expect("a claim");
        let status = finished(&claim, "2Gi");
        assert_eq!(status["conditions"], json!([{ "type": "Other", "status": "True" }]));
        assert_eq!(status["capacity"]["storage"], "2Gi");
        let conditions = with_error(&PersistentVolumeClaim::default(), "no", Timestamp::UNIX_EPOCH);
        assert_eq!(conditions[0].message.as_deref(), Some("failed to expand pvc with no"));
        assert_eq!(with_error(&claim, "no", Timestamp::UNIX_EPOCH).len(), 4, "the condition stays as it was");
    }
}
