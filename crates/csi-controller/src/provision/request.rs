//! What a driver is asked for, from a claim and its class.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use knarr_csi::messages::{
    CapacityRange, CreateVolumeRequest, Mode, MountVolume, StringMap, Topology, TopologyRequirement, VolumeCapability,
    VolumeContentSource,
};

use crate::claim::requested_bytes;
use crate::meta::uid;
use crate::parameters::Parameters;

/// The name of the volume, of which there is one for each claim however often it is requested.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", uid(claim))
}

/// What the request depends on besides claim and class.
#[derive(Default)]
pub(super) struct Details {
    /// Where the volume must be; empty if the driver has no topology.
    pub segments: StringMap,
    pub content: Option<VolumeContentSource>,
    pub mutable_parameters: StringMap,
    /// Whether the driver distinguishes one and several writers on a node.
    pub counts_writers: bool,
}

pub(super) fn create(
    claim: &PersistentVolumeClaim,
    parameters: &Parameters,
    mount_options: &[String],
    details: Details,
) -> CreateVolumeRequest {
    let place = Topology { segments: details.segments };
    let requirements = (!place.segments.is_empty())
        .then(|| TopologyRequirement { requisite: vec![place.clone()], preferred: vec![place] });
    CreateVolumeRequest {
        name: volume_name(claim),
        capacity_range: Some(CapacityRange { required_bytes: requested_bytes(claim), limit_bytes: 0 }),
        volume_capabilities: capabilities(claim, &parameters.fs_type, mount_options, details.counts_writers),
        parameters: parameters.driver.clone(),
        secrets: Vec::new(),
        volume_content_source: details.content,
        accessibility_requirements: requirements,
        mutable_parameters: details.mutable_parameters,
    }
}

fn capabilities(
    claim: &PersistentVolumeClaim,
    fs_type: &str,
    mount_options: &[String],
    counts_writers: bool,
) -> Vec<VolumeCapability> {
    let spec = claim.spec.as_ref();
    let modes = spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let is_block = spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
    modes.iter().map(|mode| capability(mode, is_block, fs_type, mount_options, counts_writers)).collect()
}

/// The capability for an access mode of Kubernetes.
pub(crate) fn capability(
    mode: &str,
    is_block: bool,
    fs_type: &str,
    mount_options: &[String],
    counts_writers: bool,
) -> VolumeCapability {
    let mode = match (mode, counts_writers) {
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        (_, true) => Mode::SingleNodeMultiWriter,
        (_, false) => Mode::SingleNodeWriter,
    };
    if is_block {
        return VolumeCapability::block(mode);
    }
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        mount_flags: mount_options.to_vec(),
        volume_mount_group: String::new(),
    };
    VolumeCapability::mount(mount, mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(spec: serde_json::Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u-1"}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn a_request_follows_from_claim_and_class() {
        let claim = claim(
            json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}),
        );
        let parameters = Parameters {
            driver: StringMap::from([("a".into(), "b".into())]),
            fs_type: "xfs".into(),
            ..Parameters::default()
        };
        let segments = StringMap::from([("node".into(), "n".into())]);
        let details = Details { segments: segments.clone(), counts_writers: true, ..Details::default() };
        let request = create(&claim, &parameters, &["noatime".to_owned()], details);
        assert_eq!(request.name, "pvc-u-1");
        assert_eq!(request.capacity_range.unwrap().required_bytes, 1 << 30);
        let modes: Vec<Mode> = request.volume_capabilities.iter().map(VolumeCapability::mode).collect();
        assert_eq!(modes, [Mode::SingleNodeMultiWriter, Mode::MultiNodeReaderOnly]);
        let requirement = request.accessibility_requirements.unwrap();
        assert_eq!((&requirement.requisite[0].segments, &requirement.preferred[0].segments), (&segments, &segments));
        assert_eq!(request.parameters, parameters.driver);
    }

    #[test]
    fn access_modes_are_translated() {
        for (mode, counts_writers, expected) in [
            ("ReadWriteOnce", false, Mode::SingleNodeWriter),
            ("ReadWriteOnce", true, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", false, Mode::SingleNodeWriter),
            ("ReadWriteOncePod", true, Mode::SingleNodeSingleWriter),
            ("ReadWriteMany", true, Mode::MultiNodeMultiWriter),
            ("ReadOnlyMany", true, Mode::MultiNodeReaderOnly),
        ] {
            assert_eq!(capability(mode, true, "", &[], counts_writers).mode(), expected, "{mode} {counts_writers}");
        }
    }
}
