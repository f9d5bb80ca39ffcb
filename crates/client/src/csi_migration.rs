//! In-tree volume types whose work CSI drivers do since Kubernetes removed their code: the same volume as the driver names it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    PersistentVolumeSpec, SecretReference, Volume,
};

const AWS_EBS: &str = "ebs.csi.aws.com";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const GCE_PD: &str = "pd.csi.storage.gke.io";
const PORTWORX: &str = "pxd.portworx.com";
const VSPHERE: &str = "csi.vsphere.vmware.com";

/// The provisioners of the types, and the drivers that replace them.
const DRIVERS: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", AWS_EBS),
    ("kubernetes.io/azure-disk", AZURE_DISK),
    ("kubernetes.io/azure-file", AZURE_FILE),
    ("kubernetes.io/cinder", CINDER),
    ("kubernetes.io/gce-pd", GCE_PD),
    ("kubernetes.io/portworx-volume", PORTWORX),
    ("kubernetes.io/vsphere-volume", VSPHERE),
];

/// The topology keys of drivers whose in-tree volumes have zones.
const ZONE_KEYS: [(&str, &str); 4] = [
    (AWS_EBS, "topology.ebs.csi.aws.com/zone"),
    (CINDER, "topology.cinder.csi.openstack.org/zone"),
    (GCE_PD, "topology.gke.io/zone"),
    (VSPHERE, "topology.csi.vmware.com/zone"),
];
const ZONE_LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const REGION: &str = "topology.kubernetes.io/region";

/// The driver that replaces an in-tree provisioner.
pub fn driver_of_provisioner(provisioner: &str) -> Option<&'static str> {
    DRIVERS.iter().find(|(own, _)| *own == provisioner).map(|(_, driver)| *driver)
}

/// A PersistentVolume of a type that was replaced, as one of the driver; `None` for all others.
pub fn translate(volume: &PersistentVolume) -> Option<PersistentVolume> {
    let source = source_of(volume)?;
    let mut translated = volume.clone();
    let spec = translated.spec.get_or_insert_default();
    spec.aws_elastic_block_store = None;
    spec.azure_disk = None;
    spec.azure_file = None;
    spec.cinder = None;
    spec.gce_persistent_disk = None;
    spec.portworx_volume = None;
    spec.vsphere_volume = None;
    if source.driver == GCE_PD {
        spec.access_modes = spec.access_modes.take().map(|modes| gce_access_modes(&modes));
    }
    let zone_key = ZONE_KEYS.iter().find(|(driver, _)| *driver == source.driver).map(|(_, key)| *key);
    spec.csi = Some(source);
    if let Some(key) = zone_key {
        translate_zones(&mut translated, key);
    }
    Some(translated)
}

fn source_of(volume: &PersistentVolume) -> Option<CSIPersistentVolumeSource> {
    let spec = volume.spec.as_ref()?;
    let annotation = |key: &str| volume.metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
    if let Some(own) = &spec.aws_elastic_block_store {
        let partition = own.partition.unwrap_or(0).to_string();
        return source(
            AWS_EBS,
            ebs_id(&own.volume_id)?,
            own.fs_type.clone(),
            own.read_only,
            [("partition", partition)],
        );
    }
    if let Some(own) = &spec.gce_persistent_disk {
        let handle = gce_handle(&own.pd_name, &zones_of(volume));
        return source(GCE_PD, handle, own.fs_type.clone(), own.read_only, [("partition", partition(own.partition))]);
    }
    if let Some(own) = &spec.azure_disk {
        return azure_disk(own);
    }
    if let Some(own) = &spec.azure_file {
        let namespace = own.secret_namespace.clone().or_else(|| spec.claim_ref.as_ref()?.namespace.clone())?;
        let group = annotation("kubernetes.io/azure-file-resource-group").unwrap_or_default();
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        return azure_file(&own.secret_name, &own.share_name, own.read_only, &group, name, namespace);
    }
    if let Some(own) = &spec.cinder {
        return source(CINDER, own.volume_id.clone(), own.fs_type.clone(), own.read_only, []);
    }
    if let Some(own) = &spec.portworx_volume {
        let secret =
            annotation("openstorage.io/auth-secret-name").zip(annotation("openstorage.io/auth-secret-namespace"));
        let secret = secret.map(|(name, namespace)| SecretReference { name: Some(name), namespace: Some(namespace) });
        let mut found = source(PORTWORX, own.volume_id.clone(), own.fs_type.clone(), None, [])?;
        found.controller_publish_secret_ref.clone_from(&secret);
        found.controller_expand_secret_ref.clone_from(&secret);
        found.node_stage_secret_ref.clone_from(&secret);
        found.node_expand_secret_ref.clone_from(&secret);
        found.node_publish_secret_ref = secret;
        return Some(found);
    }
    let own = spec.vsphere_volume.as_ref()?;
    let policy = own.storage_policy_name.clone().map(|policy| ("storagepolicyname", policy));
    source(VSPHERE, own.volume_path.clone(), own.fs_type.clone(), None, policy)
}

/// A volume that a pod names itself, as a PersistentVolume of the driver; `None` for types that were not replaced.
pub fn translate_inline(volume: &Volume, namespace: &str) -> Option<PersistentVolume> {
    let (name, source, mode) = if let Some(own) = &volume.aws_elastic_block_store {
        let (handle, partition) = (ebs_id(&own.volume_id)?, own.partition.unwrap_or(0).to_string());
        let found = source(AWS_EBS, handle.clone(), own.fs_type.clone(), own.read_only, [("partition", partition)])?;
        (format!("{AWS_EBS}-{handle}"), found, "ReadWriteOnce")
    } else if let Some(own) = &volume.gce_persistent_disk {
        let attributes = [("partition", partition(own.partition))];
        let found = source(GCE_PD, gce_handle(&own.pd_name, &[]), own.fs_type.clone(), own.read_only, attributes)?;
        (format!("{GCE_PD}-{}", own.pd_name), found, read_only_mode(own.read_only))
    } else if let Some(own) = &volume.azure_disk {
        (own.disk_uri.clone(), azure_disk(own)?, "ReadWriteOnce")
    } else if let Some(own) = &volume.azure_file {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        let found =
            azure_file(&own.secret_name, &own.share_name, own.read_only, "", &volume.name, namespace.to_owned())?;
        (found.volume_handle.clone(), found, "ReadWriteMany")
    } else if let Some(own) = &volume.cinder {
        let found = source(CINDER, own.volume_id.clone(), own.fs_type.clone(), own.read_only, [])?;
        (format!("{CINDER}-{}", own.volume_id), found, "ReadWriteOnce")
    } else if let Some(own) = &volume.portworx_volume {
        let found = source(PORTWORX, own.volume_id.clone(), own.fs_type.clone(), None, [])?;
        (format!("{PORTWORX}-{}", own.volume_id), found, read_only_mode(own.read_only))
    } else {
        let own = volume.vsphere_volume.as_ref()?;
        let policy = own.storage_policy_name.clone().map(|policy| ("storagepolicyname", policy));
        let found = source(VSPHERE, own.volume_path.clone(), own.fs_type.clone(), None, policy)?;
        (format!("{VSPHERE}-{}", own.volume_path), found, "ReadWriteOnce")
    };
    let mut translated = PersistentVolume::default();
    translated.metadata.name = Some(name);
    let volume_mode = (source.driver == GCE_PD).then(|| "Filesystem".to_owned());
    translated.spec = Some(PersistentVolumeSpec {
        csi: Some(source),
        access_modes: Some(vec![mode.to_owned()]),
        volume_mode,
        ..PersistentVolumeSpec::default()
    });
    Some(translated)
}

fn source(
    driver: &str,
    volume_handle: String,
    fs_type: Option<String>,
    read_only: Option<bool>,
    attributes: impl IntoIterator<Item = (&'static str, String)>,
) -> Option<CSIPersistentVolumeSource> {
    let attributes: BTreeMap<String, String> =
        attributes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Some(CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle,
        fs_type,
        read_only,
        volume_attributes: (!attributes.is_empty()).then_some(attributes),
        ..CSIPersistentVolumeSource::default()
    })
}

fn read_only_mode(read_only: Option<bool>) -> &'static str {
    if read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" }
}

fn partition(number: Option<i32>) -> String {
    number.filter(|number| *number != 0).map(|number| number.to_string()).unwrap_or_default()
}

/// `vol-1` of `vol-1` and of `aws://zone/vol-1`.
fn ebs_id(id: &str) -> Option<String> {
    let Some(rest) = id.strip_prefix("aws://") else { return Some(id.to_owned()) };
    let path = rest.split_once('/').map_or("", |(_, path)| path).trim_matches('/');
    (path.starts_with("vol-") && !path.contains('/')).then(|| path.to_owned())
}

/// Disks in several zones belong to their region.
fn gce_handle(disk: &str, zones: &[String]) -> String {
    match zones {
        [] => format!("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}"),
        [zone] => format!("projects/UNSPECIFIED/zones/{zone}/disks/{disk}"),
        [zone, ..] => {
            let region = zone.rsplit_once('-').map_or(zone.as_str(), |(region, _)| region);
            format!("projects/UNSPECIFIED/regions/{region}/disks/{disk}")
        }
    }
}

/// In-tree disks ignored modes that the driver does not have.
fn gce_access_modes(modes: &[String]) -> Vec<String> {
    let only_reads = !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany");
    vec![if only_reads { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned()]
}

fn azure_disk(own: &k8s_openapi::api::core::v1::AzureDiskVolumeSource) -> Option<CSIPersistentVolumeSource> {
    if own.kind.as_deref().is_some_and(|kind| !kind.eq_ignore_ascii_case("managed")) {
        return None;
    }
    let optional = [("cachingmode", own.caching_mode.clone()), ("fstype", own.fs_type.clone())];
    let optional = optional.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let attributes = [("kind", "Managed".to_owned())].into_iter().chain(optional);
    source(AZURE_DISK, own.disk_uri.clone(), own.fs_type.clone(), own.read_only, attributes)
}

fn azure_file(
    secret: &str,
    share: &str,
    read_only: Option<bool>,
    group: &str,
    name: &str,
    namespace: String,
) -> Option<CSIPersistentVolumeSource> {
    let account = secret.strip_prefix("azure-storage-account-").and_then(|rest| rest.strip_suffix("-secret"));
    let account = account.filter(|account| !account.is_empty()).unwrap_or(secret);
    let handle = format!("{group}#{account}#{share}#{name}#{namespace}");
    let mut found = source(AZURE_FILE, handle, None, read_only, [("sharename", share.to_owned())])?;
    found.node_stage_secret_ref = Some(SecretReference { name: Some(secret.to_owned()), namespace: Some(namespace) });
    Some(found)
}

/// The zones in a PersistentVolume's labels, of which a disk in several has them all in one.
fn zones_of(volume: &PersistentVolume) -> Vec<String> {
    let labels = volume.metadata.labels.as_ref();
    let label = ZONE_LABELS.iter().rev().find_map(|key| labels?.get(*key)).filter(|label| !label.is_empty());
    label.map(|label| label.split("__").map(str::to_owned).collect()).unwrap_or_default()
}

/// Nodes carry the driver's label: requirements by zone name it, and a label becomes a requirement.
fn translate_zones(volume: &mut PersistentVolume, key: &str) {
    let labels = zones_of(volume);
    let Some(spec) = &mut volume.spec else { return };
    let affinity = spec.node_affinity.get_or_insert_default();
    let required = affinity.required.get_or_insert_default();
    let mut has_zones = false;
    for term in &mut required.node_selector_terms {
        for expression in term.match_expressions.iter_mut().flatten() {
            if ZONE_LABELS.contains(&expression.key.as_str()) {
                expression.key = key.to_owned();
                has_zones = true;
            } else if expression.key == OLD_REGION {
                expression.key = REGION.to_owned();
            }
        }
    }
    if !has_zones && !labels.is_empty() {
        add_requirement(required, key, labels);
    }
    if required.node_selector_terms.is_empty() {
        spec.node_affinity = None;
    }
}

fn add_requirement(selector: &mut NodeSelector, key: &str, values: Vec<String>) {
    if selector.node_selector_terms.is_empty() {
        selector.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut selector.node_selector_terms {
        let requirement =
            NodeSelectorRequirement { key: key.to_owned(), operator: "In".to_owned(), values: Some(values.clone()) };
        term.match_expressions.get_or_insert_default().push(requirement);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(spec: Value) -> PersistentVolume {
        let labels = json!({"topology.kubernetes.io/zone": "us-1-a"});
        serde_json::from_value(json!({"metadata": {"name": "v", "labels": labels}, "spec": spec})).unwrap()
    }

    #[test]
    fn persistent_volumes_are_those_of_the_driver() {
        let disk = |zones: &str| format!("projects/UNSPECIFIED/{zones}/disks/d");
        let file = json!({"secretName": "azure-storage-account-acc-secret", "shareName": "s", "secretNamespace": "ns"});
        for (spec, driver, handle, attributes) in [
            (
                json!({"awsElasticBlockStore": {"volumeID": "aws://us-1-a/vol-1", "partition": 1}}),
                AWS_EBS,
                "vol-1".to_owned(),
                json!({"partition": "1"}),
            ),
            (json!({"gcePersistentDisk": {"pdName": "d"}}), GCE_PD, disk("zones/us-1-a"), json!({"partition": ""})),
            (
                json!({"azureDisk": {"diskName": "n", "diskURI": "/u", "cachingMode": "None", "fsType": "ext4"}}),
                AZURE_DISK,
                "/u".to_owned(),
                json!({"kind": "Managed", "cachingmode": "None", "fstype": "ext4"}),
            ),
            (json!({"azureFile": file}), AZURE_FILE, "#acc#s#v#ns".to_owned(), json!({"sharename": "s"})),
            (json!({"cinder": {"volumeID": "c"}}), CINDER, "c".to_owned(), Value::Null),
            (json!({"portworxVolume": {"volumeID": "p"}}), PORTWORX, "p".to_owned(), Value::Null),
            (
                json!({"vsphereVolume": {"volumePath": "[ds] v.vmdk", "storagePolicyName": "gold"}}),
                VSPHERE,
                "[ds] v.vmdk".to_owned(),
                json!({"storagepolicyname": "gold"}),
            ),
        ] {
            let translated = serde_json::to_value(translate(&volume(spec.clone())).unwrap()).unwrap();
            let source = &translated["spec"]["csi"];
            assert_eq!((&source["driver"], &source["volumeHandle"]), (&json!(driver), &json!(handle)), "{spec}");
            assert_eq!(source["volumeAttributes"], attributes, "{spec}");
            let fields: Vec<&String> = translated["spec"].as_object().unwrap().keys().collect();
            assert!(fields.iter().all(|field| ["csi", "nodeAffinity"].contains(&field.as_str())), "{fields:?}");
        }
        assert!(translate(&volume(json!({"hostPath": {"path": "/x"}}))).is_none());
        assert!(translate(&volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}))).is_none());
        assert!(translate(&volume(json!({"awsElasticBlockStore": {"volumeID": "aws://z/other"}}))).is_none());
    }

    #[test]
    fn zones_are_named_by_the_drivers_key() {
        let expression = |translated: &PersistentVolume| {
            let affinity = serde_json::to_value(translated.spec.as_ref().unwrap().node_affinity.as_ref()).unwrap();
            affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0].clone()
        };
        let labelled = translate(&volume(json!({"cinder": {"volumeID": "c"}}))).unwrap();
        let key = "topology.cinder.csi.openstack.org/zone";
        assert_eq!(expression(&labelled), json!({"key": key, "operator": "In", "values": ["us-1-a"]}));
        let terms = json!([{"matchExpressions": [{"key": ZONE_LABELS[1], "operator": "In", "values": ["b"]}]}]);
        let bound = json!({"cinder": {"volumeID": "c"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}});
        assert_eq!(expression(&translate(&volume(bound)).unwrap())["key"], key);
    }

    #[test]
    fn inline_volumes_are_those_of_the_driver() {
        let volume = |source: Value| -> Volume {
            let mut volume = json!({"name": "v"});
            volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            serde_json::from_value(volume).unwrap()
        };
        let disk = volume(json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}));
        let translated = translate_inline(&disk, "ns").unwrap();
        let spec = translated.spec.unwrap();
        assert_eq!(translated.metadata.name.as_deref(), Some("pd.csi.storage.gke.io-d"));
        assert_eq!(spec.access_modes.unwrap(), ["ReadOnlyMany"]);
        assert_eq!(spec.csi.unwrap().volume_handle, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d");
        let share = volume(json!({"azureFile": {"secretName": "s", "shareName": "x"}}));
        assert_eq!(translate_inline(&share, "ns").unwrap().metadata.name.as_deref(), Some("#s#x#v#ns"));
        assert!(translate_inline(&volume(json!({"emptyDir": {}})), "ns").is_none());
    }

    #[test]
    fn provisioners_have_drivers() {
        assert_eq!(driver_of_provisioner("kubernetes.io/gce-pd"), Some(GCE_PD));
        assert_eq!(driver_of_provisioner("kubernetes.io/no-provisioner"), None);
    }
}
