//! Rejects static pods that refer to objects of the API.
//!
//! A static pod runs without the API server, and no authorizer has checked that the node may read the objects.

use serde_json::Value;

/// Volumes that do not refer to API objects.
const INDEPENDENT: [&str; 22] = [
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

/// Other kinds of volumes, and the resources they refer to.
const DEPENDENT: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

const PROJECTED: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// JSON pointers to names of secrets and config maps in the sources of volumes and variables.
const SECRET_NAMES: [&str; 11] = [
    "/azureFile/secretName",
    "/cephfs/secretRef/name",
    "/cinder/secretRef/name",
    "/flexVolume/secretRef/name",
    "/rbd/secretRef/name",
    "/secret/secretName",
    "/scaleIO/secretRef/name",
    "/iscsi/secretRef/name",
    "/storageos/secretRef/name",
    "/csi/nodePublishSecretRef/name",
    "/secret/name",
];
const CONFIG_MAP_NAMES: [&str; 1] = ["/configMap/name"];

/// Rejects a pod that refers to an object of the API.
pub fn check(pod: &Value) -> Result<(), String> {
    let spec = &pod["spec"];
    let refused = |resource: &str| Err(format!("static pods may not reference {resource}"));
    if ["/serviceAccountName", "/serviceAccount"].iter().any(|path| is_named(spec, path)) {
        return refused("serviceaccounts");
    }
    let pull_secrets = items(spec, "imagePullSecrets").any(|reference| is_named(reference, "/name"));
    let variables = ["/secretRef/name", "/valueFrom/secretKeyRef/name"];
    if pull_secrets || names_any(spec, &variables, &SECRET_NAMES) {
        return refused("secrets");
    }
    if names_any(spec, &["/configMapRef/name", "/valueFrom/configMapKeyRef/name"], &CONFIG_MAP_NAMES) {
        return refused("configmaps");
    }
    if items(spec, "resourceClaims").next().is_some() {
        return refused("resourceclaims");
    }
    for volume in items(spec, "volumes") {
        if let Some(resource) = used_by_volume(volume)? {
            return refused(resource);
        }
    }
    Ok(())
}

fn used_by_volume(volume: &Value) -> Result<Option<&'static str>, String> {
    let name = volume["name"].as_str().unwrap_or_default();
    if INDEPENDENT.iter().any(|kind| !volume[kind].is_null()) {
        return Ok(None);
    }
    if let Some((_, resource)) = DEPENDENT.iter().find(|(kind, _)| !volume[kind].is_null()) {
        return Ok(Some(resource));
    }
    if volume["projected"].is_null() {
        return Err(format!("unknown volume type for volume  {name:?}"));
    }
    for source in items(&volume["projected"], "sources") {
        if let Some((_, resource)) = PROJECTED.iter().find(|(kind, _)| !source[kind].is_null()) {
            return Ok(Some(resource));
        }
        if source["downwardAPI"].is_null() {
            return Err(format!("unknown source for projected volume {name:?}"));
        }
    }
    Ok(None)
}

/// Whether a variable of a container or a volume has a name at one of the paths.
fn names_any(spec: &Value, of_variables: &[&str], of_volumes: &[&str]) -> bool {
    let containers =
        ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| items(spec, list));
    let mut variables = containers.flat_map(|container| items(container, "envFrom").chain(items(container, "env")));
    let volumes = || items(spec, "volumes").flat_map(|volume| items(&volume["projected"], "sources").chain([volume]));
    variables.any(|variable| of_variables.iter().any(|path| is_named(variable, path)))
        || volumes().any(|source| of_volumes.iter().any(|path| is_named(source, path)))
}

fn is_named(value: &Value, path: &str) -> bool {
    value.pointer(path).and_then(Value::as_str).is_some_and(|name| !name.is_empty())
}

fn items<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value[list].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(spec: Value) -> Option<String> {
        check(&json!({ "spec": spec })).err()
    }

    #[test]
    fn references_to_the_api_are_refused() {
        let volume = |source: Value| {
            let mut volume = json!({ "name": "v" });
            volume.as_object_mut().expect("an object").extend(source.as_object().cloned().expect("an object"));
            json!({ "volumes": [volume] })
        };
        let projected = |source: Value| volume(json!({ "projected": { "sources": [source] } }));
        let from = |source: Value| json!({ "initContainers": [{ "env": [{ "name": "A", "valueFrom": source }] }] });
        let cases = [
            (json!({ "serviceAccountName": "a" }), "serviceaccounts"),
            (json!({ "serviceAccount": "a" }), "serviceaccounts"),
            (json!({ "imagePullSecrets": [{ "name": "a" }] }), "secrets"),
            (json!({ "containers": [{ "envFrom": [{ "secretRef": { "name": "a" } }] }] }), "secrets"),
            (from(json!({ "secretKeyRef": { "name": "a", "key": "k" } })), "secrets"),
            (from(json!({ "configMapKeyRef": { "name": "a", "key": "k" } })), "configmaps"),
            (json!({ "containers": [{ "envFrom": [{ "configMapRef": { "name": "a" } }] }] }), "configmaps"),
            (volume(json!({ "secret": { "secretName": "a" } })), "secrets"),
            (volume(json!({ "secret": {} })), "secrets (via secret volumes)"),
            (volume(json!({ "configMap": { "name": "a" } })), "configmaps"),
            (volume(json!({ "csi": { "driver": "d" } })), "csidrivers (via CSI volumes)"),
            (volume(json!({ "persistentVolumeClaim": { "claimName": "a" } })), "persistentvolumeclaims"),
            (volume(json!({ "ephemeral": {} })), "persistentvolumeclaims (via ephemeral volumes)"),
            (volume(json!({ "iscsi": { "secretRef": { "name": "a" } } })), "secrets"),
            (projected(json!({ "secret": { "name": "a" } })), "secrets"),
            (projected(json!({ "configMap": { "name": "a" } })), "configmaps"),
            (projected(json!({ "serviceAccountToken": { "path": "t" } })), "serviceaccounts (via projected volumes)"),
            (projected(json!({ "clusterTrustBundle": { "path": "t" } })), "clustertrustbundles"),
            (projected(json!({ "podCertificate": {} })), "podcertificates"),
            (json!({ "resourceClaims": [{ "name": "a" }] }), "resourceclaims"),
        ];
        for (spec, resource) in cases {
            let title = spec.to_string();
            assert_eq!(refusal(spec), Some(format!("static pods may not reference {resource}")), "{title}");
        }
        let allowed = [
            json!({ "containers": [{ "env": [{ "name": "A", "value": "x" }] }] }),
            volume(json!({ "hostPath": { "path": "/x" } })),
            volume(json!({ "emptyDir": {} })),
            projected(json!({ "downwardAPI": { "items": [] } })),
        ];
        for spec in allowed {
            let title = spec.to_string();
            assert_eq!(refusal(spec), None, "{title}");
        }
        assert_eq!(refusal(volume(json!({ "new": {} }))).as_deref(), Some("unknown volume type for volume  \"v\""));
        assert_eq!(
            refusal(projected(json!({ "new": {} }))).as_deref(),
            Some("unknown source for projected volume \"v\"")
        );
    }
}
