//! What is wrong with each type of volume, in pods and in PersistentVolumes.

use serde_json::{Value, json};

use crate::core::persistent_volume::PersistentVolume;
use crate::core::pod::Pod;
use crate::testing::{defaulted, messages};

/// The errors of a pod with one volume, without the path of the volume.
fn in_pod(volume: &Value) -> Vec<String> {
    let mut named = volume.clone();
    named["name"] = json!("v");
    let pod = defaulted(
        &Pod,
        json!({"metadata": {"name": "p", "namespace": "n"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": [named]}}),
    );
    within("spec.volumes[0]", &messages(&Pod, &pod, None))
}

/// The errors of a PersistentVolume with this source, without `spec`.
fn persistent(source: &Value) -> Vec<String> {
    let mut spec = source.clone();
    spec["capacity"] = json!({"storage": "1Gi"});
    spec["accessModes"] = json!(["ReadWriteOnce"]);
    let volume = defaulted(&PersistentVolume, json!({"metadata": {"name": "v"}, "spec": spec}));
    within("spec", &messages(&PersistentVolume, &volume, None))
}

fn within(path: &str, found: &[String]) -> Vec<String> {
    let relative = |message: &String| message.strip_prefix(path).unwrap_or(message).trim_start_matches('.').to_owned();
    found.iter().map(relative).collect()
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                     and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

#[test]
fn sources_of_pods_and_volumes_are_checked_alike() {
    for (source, expected) in [
        (json!({"hostPath": {"path": "/a", "type": "Directory"}}), vec![]),
        (json!({"hostPath": {"path": ""}}), vec!["hostPath.path: Required value"]),
        (
            json!({"hostPath": {"path": "/a/../b"}}),
            vec!["hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"],
        ),
        (
            json!({"hostPath": {"path": "/a", "type": "Pipe"}}),
            vec![
                "hostPath.type: Unsupported value: \"Pipe\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \
                 \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
            ],
        ),
        (json!({"nfs": {"server": "s", "path": "/a"}}), vec![]),
        (
            json!({"nfs": {"server": "", "path": "a"}}),
            vec!["nfs.server: Required value", "nfs.path: Invalid value: \"a\": must be an absolute path"],
        ),
        (json!({"gcePersistentDisk": {"pdName": "d", "partition": 255}}), vec![]),
        (
            json!({"gcePersistentDisk": {"pdName": "", "partition": 256}}),
            vec![
                "persistentDisk.pdName: Required value",
                "persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive",
            ],
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "", "partition": -1}}),
            vec![
                "awsElasticBlockStore.volumeID: Required value",
                "awsElasticBlockStore.partition: Invalid value: -1: must be between 1 and 255, inclusive",
            ],
        ),
        (json!({"flocker": {"datasetName": "d"}}), vec![]),
        (json!({"flocker": {}}), vec!["flocker: Required value: one of datasetName and datasetUUID is required"]),
        (
            json!({"flocker": {"datasetName": "a/b", "datasetUUID": "u"}}),
            vec![
                "flocker: Invalid value: \"resource\": datasetName and datasetUUID can not be specified simultaneously",
                "flocker.datasetName: Invalid value: \"a/b\": must not contain '/'",
            ],
        ),
        (
            json!({"rbd": {"monitors": [], "image": ""}}),
            vec!["rbd.monitors: Required value", "rbd.image: Required value"],
        ),
        (json!({"cephfs": {"monitors": []}}), vec!["cephfs.monitors: Required value"]),
        (json!({"quobyte": {"registry": "h:1,[::1]:2", "volume": "v"}}), vec![]),
        (
            json!({"quobyte": {"registry": "", "volume": ""}}),
            vec![
                "quobyte.registry: Required value: must be a host:port pair or multiple pairs separated by commas",
                "quobyte.volume: Required value",
            ],
        ),
        (
            json!({"quobyte": {"registry": "h:1,h", "volume": "v"}}),
            vec![
                "quobyte.registry: Invalid value: \"h:1,h\": must be a host:port pair or multiple pairs separated by commas",
            ],
        ),
        (
            json!({"quobyte": {"registry": "h:1", "volume": "v", "tenant": "t".repeat(65)}}),
            vec!["quobyte.tenant: Required value: must be a UUID and may not exceed a length of 64 characters"],
        ),
        (json!({"fc": {"targetWWNs": ["w"], "lun": 0}}), vec![]),
        (json!({"fc": {"wwids": ["w"]}}), vec![]),
        (
            json!({"fc": {}}),
            vec!["fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"],
        ),
        (
            json!({"fc": {"targetWWNs": ["w"], "wwids": ["w"], "lun": 256}}),
            vec![
                "fc.targetWWNs: Invalid value: [\"w\"]: targetWWNs and wwids can not be specified simultaneously",
                "fc.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ],
        ),
        (
            json!({"fc": {"targetWWNs": ["w"]}}),
            vec!["fc.lun: Required value: lun is required if targetWWNs is specified"],
        ),
        (
            json!({"flexVolume": {"driver": "", "options": {"a": "b", "x.kubernetes.io/y": "z"}}}),
            vec![
                "flexVolume.driver: Required value",
                "flexVolume.options[x.kubernetes.io/y]: Invalid value: \"x.kubernetes.io/y\": kubernetes.io and k8s.io \
                 namespaces are reserved",
            ],
        ),
        (json!({"vsphereVolume": {"volumePath": ""}}), vec!["vsphereVolume.volumePath: Required value"]),
        (json!({"photonPersistentDisk": {"pdID": ""}}), vec!["photonPersistentDisk.pdID: Required value"]),
        (json!({"portworxVolume": {"volumeID": ""}}), vec!["portworxVolume.volumeID: Required value"]),
        (
            json!({"scaleIO": {"gateway": "", "system": "", "volumeName": ""}}),
            vec![
                "scaleIO.gateway: Required value",
                "scaleIO.system: Required value",
                "scaleIO.volumeName: Required value",
            ],
        ),
        (
            json!({"storageos": {"volumeName": "A", "volumeNamespace": ""}}),
            vec![&*format!("storageos.volumeName: Invalid value: \"A\": {LABEL}")],
        ),
    ] {
        assert_eq!(in_pod(&source), expected, "{source}");
        assert_eq!(persistent(&source), expected, "{source}");
    }
}

#[test]
fn sources_of_pods_are_checked() {
    for (volume, expected) in [
        (json!({}), vec![]),
        (json!({"emptyDir": {"sizeLimit": "1Gi"}}), vec![]),
        (
            json!({"emptyDir": {"sizeLimit": "-1"}}),
            vec!["emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity"],
        ),
        (
            json!({"gitRepo": {"repository": "", "directory": "/a"}}),
            vec![
                "gitRepo.repository: Required value",
                "gitRepo.directory: Invalid value: \"/a\": must be a relative path",
            ],
        ),
        (json!({"secret": {"secretName": "s", "items": [{"key": "k", "path": "p", "mode": 0o777}]}}), vec![]),
        (
            json!({"secret": {"secretName": "", "defaultMode": 0o1000}}),
            vec![
                "secret.secretName: Required value",
                "secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            ],
        ),
        (
            json!({"configMap": {"name": "m", "items": [{"key": "", "path": "../a"}, {"key": "k", "path": "..a", "mode": -1}]}}),
            vec![
                "configMap.items[0].key: Required value",
                "configMap.items[0].path: Invalid value: \"../a\": must not contain '..'",
                "configMap.items[1].path: Invalid value: \"..a\": must not start with '..'",
                "configMap.items[1].mode: Invalid value: -1: must be a number between 0 and 0777 (octal), both inclusive",
            ],
        ),
        (json!({"persistentVolumeClaim": {"claimName": ""}}), vec!["persistentVolumeClaim.claimName: Required value"]),
        (
            json!({"glusterfs": {"endpoints": "", "path": ""}}),
            vec!["glusterfs.endpoints: Required value", "glusterfs.path: Required value"],
        ),
        (
            json!({"cinder": {"volumeID": "", "secretRef": {}}}),
            vec!["cinder.volumeID: Required value", "cinder.secretRef.name: Required value"],
        ),
        (
            json!({"azureFile": {"secretName": "", "shareName": ""}}),
            vec!["azureFile.secretName: Required value", "azureFile.shareName: Required value"],
        ),
        (json!({"storageos": {"volumeName": "v", "secretRef": {}}}), vec!["storageos.secretRef.name: Required value"]),
        (json!({"ephemeral": {}}), vec!["ephemeral.volumeClaimTemplate: Required value"]),
        (
            json!({"image": {"reference": "r", "pullPolicy": "Maybe"}}),
            vec![
                "image.pullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        ),
        (json!({"image": {"pullPolicy": "Always"}}), vec!["image.reference: Required value"]),
        (
            json!({"emptyDir": {}, "nfs": {"server": "", "path": ""}}),
            vec!["nfs: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            json!({"emptyDir": {}, "cephfs": {"monitors": []}}),
            vec!["cephFS: Forbidden: may not specify more than 1 volume type"],
        ),
    ] {
        assert_eq!(in_pod(&volume), expected, "{volume}");
    }
}

#[test]
fn disks_of_azure_are_checked() {
    let disk = |kind: &str, uri: &str| json!({"azureDisk": {"diskName": "d", "diskURI": uri, "kind": kind}});
    for (source, expected) in [
        (disk("Managed", "/subscriptions/x"), vec![]),
        (disk("Shared", "https://x"), vec![]),
        (
            disk("Managed", "https://x"),
            vec![
                "azureDisk.diskURI: Unsupported value: \"https://x\": supported values: \
                 \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ],
        ),
        (
            disk("Dedicated", "/subscriptions/x"),
            vec![
                "azureDisk.diskURI: Unsupported value: \"/subscriptions/x\": supported values: \
                 \"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd\"",
            ],
        ),
        (
            disk("Lent", "https://x"),
            vec![
                "azureDisk.kind: Unsupported value: \"Lent\": supported values: \"Dedicated\", \"Managed\", \"Shared\"",
            ],
        ),
        (
            json!({"azureDisk": {"diskName": "", "diskURI": "https://x", "cachingMode": "All"}}),
            vec![
                "azureDisk.diskName: Required value",
                "azureDisk.cachingMode: Unsupported value: \"All\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\"",
            ],
        ),
    ] {
        assert_eq!(in_pod(&source), expected, "{source}");
        assert_eq!(persistent(&source), expected, "{source}");
    }
}

#[test]
fn sources_of_persistent_volumes_are_checked() {
    for (source, expected) in [
        (json!({}), vec![": Required value: must specify a volume type"]),
        (
            json!({"glusterfs": {"endpoints": "e", "path": "p", "endpointsNamespace": ""}}),
            vec![
                "glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid \
                 namespace name",
            ],
        ),
        (
            json!({"cinder": {"volumeID": "v", "secretRef": {"name": "s"}}}),
            vec!["cinder.secretRef.namespace: Required value"],
        ),
        (
            json!({"azureFile": {"secretName": "s", "shareName": "n", "secretNamespace": ""}}),
            vec!["azureFile.secretNamespace: Required value"],
        ),
        (
            json!({"storageos": {"volumeName": "v", "secretRef": {"name": "s"}}}),
            vec!["storageos.secretRef.namespace: Required value"],
        ),
        (
            json!({"local": {"path": "/a/.."}}),
            vec![
                "local.path: Invalid value: \"/a/..\": must not contain '..'",
                "nodeAffinity: Required value: Local volume requires node affinity",
            ],
        ),
        (
            json!({"local": {"path": ""}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}}}),
            vec!["local.path: Required value"],
        ),
        (
            json!({"hostPath": {"path": "/a"}, "local": {"path": "/a"}}),
            vec!["local: Forbidden: may not specify more than 1 volume type"],
        ),
    ] {
        assert_eq!(persistent(&source), expected, "{source}");
    }
}
