//! Publishes how much room the node has for volumes of each class, so that pods are not scheduled to full disks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use knarr_client::Change;
use knarr_client::quantity::{self, Format, Quantity};
use knarr_csi::messages::{ControllerCapability, GetCapacityRequest, GetCapacityResponse, Topology};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::driver::Driver;
use crate::error::{Result, ignore_not_found};
use crate::meta::name;
use crate::parameters::Parameters;

/// Something else may use the disk.
const POLL_PERIOD: Duration = Duration::from_secs(60);
/// Several volumes are often created at once.
const DEBOUNCE: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(5);
const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const MANAGER_LABEL: &str = "csi.storage.k8s.io/managed-by";

pub(crate) async fn run(driver: Arc<Driver>) {
    if !driver.can(ControllerCapability::GetCapacity) {
        return;
    }
    let classes_changed = Arc::new(Notify::new());
    let (notify, own) = (classes_changed.clone(), driver.name.clone());
    driver.classes.on_change(move |change| {
        if change.latest().provisioner == own && has_changed(change) {
            notify.notify_one();
        }
    });
    let notify = classes_changed.clone();
    driver.csi_drivers.on_change(move |_| notify.notify_one());
    loop {
        let wait = match publish(&driver).await {
            Ok(()) => POLL_PERIOD,
            Err(error) => {
                tracing::debug!(driver = driver.name, %error, "cannot publish the storage capacity; retrying");
                RETRY
            }
        };
        tokio::select! {
            () = driver.space_changed.notified() => tokio::time::sleep(DEBOUNCE).await,
            () = classes_changed.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Whether the capacity may differ; metadata does not matter.
fn has_changed(change: &Change<StorageClass>) -> bool {
    let relevant = |class: &StorageClass| (class.parameters.clone(), class.provisioner.clone());
    change.previous().is_none_or(|old| relevant(old) != relevant(change.latest()))
}

async fn publish(driver: &Driver) -> Result<()> {
    let api: Api<CSIStorageCapacity> = Api::namespaced(driver.kube.clone(), &driver.namespace);
    let mut existing: BTreeMap<String, CSIStorageCapacity> = owned(driver, &api).await?;
    let is_wanted = driver.csi_drivers.get("", &driver.name);
    let is_wanted = is_wanted.is_some_and(|object| object.spec.storage_capacity.unwrap_or(false));
    let classes = driver.classes.list();
    for class in classes.iter().filter(|class| is_wanted && class.provisioner == driver.name) {
        let Ok(parameters) = Parameters::parse(class.parameters.as_ref()) else { continue };
        let request = GetCapacityRequest {
            parameters: parameters.driver,
            accessible_topology: Some(Topology { segments: driver.place.segments.clone() }),
            ..GetCapacityRequest::default()
        };
        let found = driver.csi.get_capacity(request).await?;
        let object = capacity(driver, class, &found);
        match existing.remove(name(&object)) {
            None => {
                api.create(&PostParams::default(), &object).await?;
            }
            Some(own) if sizes(&own) != sizes(&object) => {
                let patch =
                    Patch::Merge(json!({"capacity": object.capacity, "maximumVolumeSize": object.maximum_volume_size}));
                api.patch(name(&object), &PatchParams::default(), &patch).await?;
            }
            Some(_) => {}
        }
    }
    for outdated in existing.keys() {
        ignore_not_found(api.delete(outdated, &DeleteParams::default()).await)?;
    }
    Ok(())
}

fn sizes(object: &CSIStorageCapacity) -> (Option<i64>, Option<i64>) {
    let value = quantity::value;
    (object.capacity.as_ref().map(value), object.maximum_volume_size.as_ref().map(value))
}

/// The objects of this driver on this node.
async fn owned(driver: &Driver, api: &Api<CSIStorageCapacity>) -> Result<BTreeMap<String, CSIStorageCapacity>> {
    let labels = format!("{DRIVER_LABEL}={},{MANAGER_LABEL}={}", driver.name, manager(&driver.node));
    let found = api.list(&ListParams::default().labels(&labels)).await?;
    Ok(found.items.into_iter().map(|object| (name(&object).to_owned(), object)).collect())
}

/// A label's value has at most 63 characters, a node's name more.
fn manager(node: &str) -> String {
    format!("knarr-{}", short_hash(node))
}

fn short_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}

fn capacity(driver: &Driver, class: &StorageClass, found: &GetCapacityResponse) -> CSIStorageCapacity {
    let size = |bytes: i64| quantity::to_api(&Quantity::new(bytes, Format::BinarySi));
    // A removed node takes its objects with it.
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: driver.node.clone(),
        uid: driver.place.node_uid.clone(),
        ..OwnerReference::default()
    };
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(format!("csisc-{}", short_hash(&format!("{}/{}/{}", driver.name, driver.node, name(class))))),
            namespace: Some(driver.namespace.clone()),
            labels: Some(BTreeMap::from([
                (DRIVER_LABEL.to_owned(), driver.name.clone()),
                (MANAGER_LABEL.to_owned(), manager(&driver.node)),
            ])),
            owner_references: driver.is_local.then(|| vec![owner]),
            ..ObjectMeta::default()
        },
        storage_class_name: name(class).to_owned(),
        node_topology: Some(LabelSelector {
            match_labels: driver.is_local.then(|| driver.place.segments.clone()),
            ..LabelSelector::default()
        }),
        capacity: Some(size(found.available_capacity)),
        maximum_volume_size: found.maximum_volume_size.map(|max| size(max.value)),
    }
}
