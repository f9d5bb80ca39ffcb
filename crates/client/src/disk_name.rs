//! The names by which nodes and the attach-detach controller identify disks of a storage network, iSCSI and Fibre Channel,
//! in `volumesInUse` and `volumesAttached`. They are those of Kubernetes, so that either side can be Kubernetes' own.

use k8s_openapi::api::core::v1::{FCVolumeSource, PersistentVolume, Volume};

/// The plugin of iSCSI disks.
pub const ISCSI: &str = "kubernetes.io/iscsi";
/// The plugin of Fibre Channel disks.
pub const FIBRE_CHANNEL: &str = "kubernetes.io/fc";

/// The plugin and the disk that a PersistentVolume refers to.
pub fn of_volume(volume: &PersistentVolume) -> Option<(&'static str, String)> {
    let spec = volume.spec.as_ref()?;
    if let Some(source) = &spec.iscsi {
        return Some((ISCSI, iscsi(&source.target_portal, &source.iqn, source.lun)));
    }
    Some((FIBRE_CHANNEL, fibre_channel(spec.fc.as_ref()?)?))
}

/// The same of a volume that a pod names without a claim.
pub fn of_inline(volume: &Volume) -> Option<(&'static str, String)> {
    if let Some(source) = &volume.iscsi {
        return Some((ISCSI, iscsi(&source.target_portal, &source.iqn, source.lun)));
    }
    Some((FIBRE_CHANNEL, fibre_channel(volume.fc.as_ref()?)?))
}

/// The name in the status of a node.
pub fn unique_name((plugin, disk): &(&'static str, String)) -> String {
    format!("{plugin}/{disk}")
}

fn iscsi(portal: &str, target: &str, unit: i32) -> String {
    format!("{portal}:{target}:{unit}")
}

fn fibre_channel(source: &FCVolumeSource) -> Option<String> {
    let list = |ids: &[String]| format!("[{}]", ids.join(" "));
    let ports = source.target_wwns.as_deref().unwrap_or_default();
    let ids = source.wwids.as_deref().unwrap_or_default();
    match source.lun {
        Some(unit) if !ports.is_empty() => Some(format!("{}:{unit}", list(ports))),
        _ => (!ids.is_empty()).then(|| list(ids)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_those_of_kubernetes() {
        for (source, expected) in [
            (
                json!({"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2003-01.io.example:d", "lun": 2}}),
                Some("kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.io.example:d:2"),
            ),
            (json!({"fc": {"targetWWNs": ["a", "b"], "lun": 0}}), Some("kubernetes.io/fc/[a b]:0")),
            (json!({"fc": {"wwids": ["3600 1"]}}), Some("kubernetes.io/fc/[3600 1]")),
            (json!({"fc": {"targetWWNs": ["a"]}}), None),
            (json!({"emptyDir": {}}), None),
        ] {
            let mut volume = source.clone();
            volume["name"] = json!("v");
            let inline: Volume = serde_json::from_value(volume).expect("a volume");
            assert_eq!(of_inline(&inline).as_ref().map(unique_name).as_deref(), expected);
            if source.get("emptyDir").is_none() {
                let volume: PersistentVolume = serde_json::from_value(json!({"spec": source})).expect("a volume");
                assert_eq!(of_volume(&volume).as_ref().map(unique_name).as_deref(), expected);
            }
        }
    }
}
