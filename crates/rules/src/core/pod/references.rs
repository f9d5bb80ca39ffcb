//! References from a pod's spec to other API objects.

use knarr_api::value::Read;
use serde_json::Value;

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Volume sources whose credentials are a secret of the pod's namespace, and the field that names it.
const VOLUME_SECRETS: [&[&str]; 10] = [
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["scaleIO", "secretRef", "name"],
    &["secret", "secretName"],
    &["storageos", "secretRef", "name"],
];

/// Volume sources that refer to no API objects other than those in [`VOLUME_SECRETS`].
const VOLUMES_WITHOUT_OBJECTS: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// All secrets that a pod refers to.
pub fn secret_names(pod: &Value) -> impl Iterator<Item = &str> {
    let pulls = pod.items(&["spec", "imagePullSecrets"]).iter().map(|secret| secret.text(&["name"]));
    let volumes = pod.items(&["spec", "volumes"]).iter().flat_map(|volume| {
        let own = VOLUME_SECRETS.iter().map(|path| volume.text(path));
        own.chain(volume.items(&["projected", "sources"]).iter().map(|source| source.text(&["secret", "name"])))
    });
    let variables = environment(pod, "secretKeyRef", "secretRef");
    pulls.chain(variables).chain(volumes).filter(|name| !name.is_empty())
}

fn config_map_names(pod: &Value) -> impl Iterator<Item = &str> {
    let volumes = pod.items(&["spec", "volumes"]).iter().flat_map(|volume| {
        let own = std::iter::once(volume.text(&["configMap", "name"]));
        own.chain(volume.items(&["projected", "sources"]).iter().map(|source| source.text(&["configMap", "name"])))
    });
    environment(pod, "configMapKeyRef", "configMapRef").chain(volumes).filter(|name| !name.is_empty())
}

/// The references of the containers' `env` and `envFrom`.
fn environment<'a>(pod: &'a Value, key: &'static str, whole: &'static str) -> impl Iterator<Item = &'a str> {
    let containers = CONTAINERS.into_iter().flat_map(|list| pod.items(&["spec", list]));
    containers.flat_map(move |container| {
        let variables = container.items(&["env"]).iter().map(move |one| one.text(&["valueFrom", key, "name"]));
        variables.chain(container.items(&["envFrom"]).iter().map(move |from| from.text(&[whole, "name"])))
    })
}

/// The first kind of API object that a pod refers to, as error messages name it. Fails on an unknown volume source, whose
/// references are unknown too.
pub fn api_reference(pod: &Value) -> Result<Option<&'static str>, String> {
    if !pod.text(&["spec", "serviceAccountName"]).is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if secret_names(pod).next().is_some() {
        return Ok(Some("secrets"));
    }
    if config_map_names(pod).next().is_some() {
        return Ok(Some("configmaps"));
    }
    if !pod.items(&["spec", "resourceClaims"]).is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in pod.items(&["spec", "volumes"]) {
        if let Some(reference) = volume_reference(volume)? {
            return Ok(Some(reference));
        }
    }
    Ok(None)
}

fn volume_reference(volume: &Value) -> Result<Option<&'static str>, String> {
    let kinds = [
        ("configMap", "configmaps (via configmap volumes)"),
        ("secret", "secrets (via secret volumes)"),
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ("azureFile", "secrets (via azureFile volumes)"),
    ];
    if VOLUMES_WITHOUT_OBJECTS.iter().any(|kind| volume.has(&[kind])) {
        return Ok(None);
    }
    if let Some((_, reference)) = kinds.iter().find(|(kind, _)| volume.has(&[kind])) {
        return Ok(Some(reference));
    }
    let name = volume.text(&["name"]);
    if !volume.has(&["projected"]) {
        return Err(format!("unknown volume type for volume  {name:?}"));
    }
    for source in volume.items(&["projected", "sources"]) {
        if let Some(reference) = projected_reference(source, name)? {
            return Ok(Some(reference));
        }
    }
    Ok(None)
}

fn projected_reference(source: &Value, volume: &str) -> Result<Option<&'static str>, String> {
    let kinds = [
        ("configMap", Some("configmaps (via projected volumes)")),
        ("secret", Some("secrets (via projected volumes)")),
        ("serviceAccountToken", Some("serviceaccounts (via projected volumes)")),
        ("clusterTrustBundle", Some("clustertrustbundles")),
        ("podCertificate", Some("podcertificates")),
        ("downwardAPI", None),
    ];
    match kinds.iter().find(|(kind, _)| source.has(&[kind])) {
        Some((_, reference)) => Ok(*reference),
        None => Err(format!("unknown source for projected volume {volume:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_reference_is_found() {
        let volume = |volume: Value| json!({"spec": {"volumes": [volume]}});
        let projected = |source: Value| volume(json!({"name": "v", "projected": {"sources": [source]}}));
        for (pod, found) in [
            (json!({"spec": {"containers": [{"env": [{"name": "A", "value": "b"}]}]}}), Ok(None)),
            (json!({"spec": {"serviceAccountName": "a"}}), Ok(Some("serviceaccounts"))),
            (json!({"spec": {"imagePullSecrets": [{"name": "s"}]}}), Ok(Some("secrets"))),
            (
                json!({"spec": {"ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]}}),
                Ok(Some("secrets")),
            ),
            (
                json!({"spec": {"initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s"}}}]}]}}),
                Ok(Some("secrets")),
            ),
            (json!({"spec": {"containers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}}), Ok(Some("configmaps"))),
            (
                json!({"spec": {"containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "c"}}}]}]}}),
                Ok(Some("configmaps")),
            ),
            (json!({"spec": {"resourceClaims": [{"name": "r"}]}}), Ok(Some("resourceclaims"))),
            (volume(json!({"hostPath": {"path": "/"}})), Ok(None)),
            (volume(json!({"emptyDir": {}})), Ok(None)),
            (volume(json!({"rbd": {"secretRef": {"name": "s"}}})), Ok(Some("secrets"))),
            (volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}})), Ok(Some("secrets"))),
            (volume(json!({"csi": {"driver": "d"}})), Ok(Some("csidrivers (via CSI volumes)"))),
            (volume(json!({"secret": {"secretName": "s"}})), Ok(Some("secrets"))),
            (volume(json!({"secret": {}})), Ok(Some("secrets (via secret volumes)"))),
            (volume(json!({"configMap": {"name": "c"}})), Ok(Some("configmaps"))),
            (volume(json!({"glusterfs": {"endpoints": "e"}})), Ok(Some("endpoints (via glusterFS volumes)"))),
            (volume(json!({"persistentVolumeClaim": {"claimName": "c"}})), Ok(Some("persistentvolumeclaims"))),
            (volume(json!({"ephemeral": {}})), Ok(Some("persistentvolumeclaims (via ephemeral volumes)"))),
            (volume(json!({"name": "v", "new": {}})), Err("unknown volume type for volume  \"v\"".to_owned())),
            (projected(json!({"downwardAPI": {}})), Ok(None)),
            (projected(json!({"secret": {"name": "s"}})), Ok(Some("secrets"))),
            (projected(json!({"configMap": {"name": "c"}})), Ok(Some("configmaps"))),
            (projected(json!({"serviceAccountToken": {}})), Ok(Some("serviceaccounts (via projected volumes)"))),
            (projected(json!({"clusterTrustBundle": {}})), Ok(Some("clustertrustbundles"))),
            (projected(json!({"podCertificate": {}})), Ok(Some("podcertificates"))),
            (projected(json!({"new": {}})), Err("unknown source for projected volume \"v\"".to_owned())),
        ] {
            assert_eq!(api_reference(&pod), found, "{pod}");
        }
    }
}
