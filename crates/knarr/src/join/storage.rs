//! Permissions of the nodes' CSI controllers, the kinds of volume snapshots, and the classes of the local driver.

use std::time::{Duration, Instant};

use knarr_client::k8s_openapi::api::storage::v1::CSIDriver;
use knarr_client::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_client::kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use knarr_client::kube::{self, Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

/// ClusterRole and ClusterRoleBinding of the CSI controllers.
pub const ROLE: &str = "knarr:node-storage";
/// The namespace of CSIStorageCapacities, and of Leases for drivers that one node serves.
pub const NAMESPACE: &str = "kube-system";

const MANAGER: &str = "knarr";

/// The names in [`SNAPSHOTS`].
pub const DEFINITIONS: [&str; 3] = [
    "volumesnapshotclasses.snapshot.storage.k8s.io",
    "volumesnapshotcontents.snapshot.storage.k8s.io",
    "volumesnapshots.snapshot.storage.k8s.io",
];
const SNAPSHOTS: &str = include_str!("snapshots.yaml");
const LOCAL: &str = include_str!("local_storage.yaml");
/// The name of the local driver's CSIDriver.
pub const LOCAL_DRIVER: &str = "local.knarr.io";
/// The name of the local driver's StorageClass and VolumeSnapshotClass.
pub const LOCAL_CLASS: &str = "knarr-local";
const KIND_TIMEOUT: Duration = Duration::from_secs(10);
const KIND_RETRY: Duration = Duration::from_millis(100);

/// What the CSI controller of a node may do: volumes for all claims of its drivers. It reads no Secrets and no pods. Which objects
/// of these kinds it writes is decided by the admission plugin `NodeStorage`.
pub fn role() -> Value {
    let read = ["get", "list", "watch"];
    let snapshots = "snapshot.storage.k8s.io";
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": ROLE},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": read},
            {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["get", "list", "watch", "create", "delete", "patch"]},
            {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": [""], "resources": ["persistentvolumeclaims/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
            {
                "apiGroups": ["storage.k8s.io"], "verbs": read,
                "resources": ["csidrivers", "csinodes", "storageclasses", "volumeattributesclasses"],
            },
            {"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments/status"], "verbs": ["patch"]},
            {"apiGroups": [snapshots], "resources": ["volumesnapshotclasses"], "verbs": read},
            {"apiGroups": [snapshots], "resources": ["volumesnapshots"], "verbs": ["get", "list", "watch", "patch"]},
            {
                "apiGroups": [snapshots], "resources": ["volumesnapshotcontents"],
                "verbs": ["get", "list", "watch", "create", "delete", "patch"],
            },
            {
                "apiGroups": [snapshots], "resources": ["volumesnapshots/status", "volumesnapshotcontents/status"],
                "verbs": ["patch"],
            },
        ],
    })
}

/// What it may do in [`NAMESPACE`], and in no other.
pub fn namespace_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": ROLE},
        "rules": [
            {
                "apiGroups": ["storage.k8s.io"], "resources": ["csistoragecapacities"],
                "verbs": ["get", "list", "watch", "create", "delete", "patch"],
            },
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
        ],
    })
}

/// Creates the kinds of volume snapshots that do not exist: an installed snapshot controller brings its own.
pub async fn ensure(client: &Client) -> Result<(), kube::Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in definitions() {
        let name = definition.metadata.name.clone().unwrap_or_default();
        if api.get_opt(&name).await?.is_none() {
            api.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(&definition)).await?;
        }
    }
    Ok(())
}

/// Creates the classes of the local driver, in a cluster that does not know the driver yet: what an administrator changes or
/// deletes later stays so.
pub async fn ensure_local(client: &Client) -> Result<(), kube::Error> {
    let drivers: Api<CSIDriver> = Api::all(client.clone());
    if drivers.get_opt(LOCAL_DRIVER).await?.is_some() {
        return Ok(());
    }
    // The driver last: with it, all are there.
    for object in local_objects().into_iter().rev() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource_of(&object));
        let name = object.metadata.name.clone().unwrap_or_default();
        let started = Instant::now();
        loop {
            match api.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(&object)).await {
                // A kind that was defined just now is served a moment later.
                Err(kube::Error::Api(status)) if status.code == 404 && started.elapsed() < KIND_TIMEOUT => {
                    tokio::time::sleep(KIND_RETRY).await;
                }
                applied => break drop(applied?),
            }
        }
    }
    Ok(())
}

/// The resource of an object's kind; the plurals of these kinds are regular.
fn resource_of(object: &DynamicObject) -> ApiResource {
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind))
}

fn local_objects() -> Vec<DynamicObject> {
    let documents = serde_yaml_ng::Deserializer::from_str(LOCAL);
    documents.filter_map(|document| DynamicObject::deserialize(document).ok()).collect()
}

fn definitions() -> impl Iterator<Item = CustomResourceDefinition> {
    let documents = serde_yaml_ng::Deserializer::from_str(SNAPSHOTS);
    // The file is part of the program; the test reads it.
    documents.filter_map(|document| CustomResourceDefinition::deserialize(document).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_of_snapshots_are_defined() {
        let names: Vec<String> = definitions().filter_map(|definition| definition.metadata.name).collect();
        assert_eq!(names, DEFINITIONS);
        for definition in definitions() {
            let version = &definition.spec.versions[0];
            assert!(version.name == "v1" && version.served && version.storage);
            assert!(version.schema.as_ref().unwrap().open_api_v3_schema.is_some());
        }
    }

    #[test]
    fn the_local_class_is_the_default_and_served_by_the_nodes() {
        let objects = local_objects();
        let names: Vec<(String, String)> = objects
            .iter()
            .map(|object| (resource_of(object).plural, object.metadata.name.clone().unwrap_or_default()))
            .collect();
        let expected =
            [("csidrivers", LOCAL_DRIVER), ("storageclasses", LOCAL_CLASS), ("volumesnapshotclasses", LOCAL_CLASS)];
        assert_eq!(names, expected.map(|(plural, name)| (plural.to_owned(), name.to_owned())));
        let annotations = objects[0].metadata.annotations.clone().unwrap_or_default();
        assert_eq!(annotations[knarr_csi_controller::ANNOTATION], knarr_csi_controller::BUILT_IN);
    }

    #[test]
    fn storage_controllers_read_no_secrets_and_no_pods() {
        let role = role().to_string();
        assert!(!role.contains("secrets") && !role.contains("\"pods\"") && !role.contains("\"*\""), "{role}");
    }
}
