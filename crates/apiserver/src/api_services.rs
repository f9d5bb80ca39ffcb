//! APIService objects of the groups that this server serves itself.

use std::collections::HashMap;

use jiff::Timestamp;
use knarr_api::time;
use knarr_api::value::Read;
use knarr_store::Error;
use serde_json::{Value, json};

use crate::kinds::Resource;
use crate::state::ApiServer;
use crate::stored;

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Creates the objects of served versions and removes those of versions no longer served. Objects of others stay.
pub async fn publish(server: &ApiServer) {
    let kinds = server.backend.kinds.load_full();
    let Some(resource) = kinds.resource(GROUP, "v1", PLURAL) else { return };
    let mut desired: HashMap<String, Value> = HashMap::new();
    for group in kinds.catalogue.groups() {
        for version in &group.versions {
            let custom = version.kinds.iter().all(|kind| kind.custom);
            let name = format!("{}.{}", version.name, group.name);
            let spec = json!({
                "group": group.name, "version": version.name, "groupPriorityMinimum": group.priority,
                "versionPriority": version.priority,
            });
            desired.insert(name, json!({"spec": spec, "mark": if custom { "true" } else { "onstart" }}));
        }
    }
    for existing in server.backend.objects.list(GROUP, PLURAL, "") {
        let name = existing.text(&["metadata", "name"]).to_owned();
        let ours = !existing.text(&["metadata", "labels", LABEL]).is_empty();
        match desired.remove(&name) {
            None if ours => remove(server, resource, &name).await,
            _ => {}
        }
    }
    for (name, parts) in desired {
        create(server, resource, &name, &parts).await;
    }
}

async fn create(server: &ApiServer, resource: &Resource, name: &str, parts: &Value) {
    let now = time::seconds(Timestamp::now());
    let mut spec = parts["spec"].clone();
    if spec.text(&["group"]).is_empty()
        && let Some(fields) = spec.as_object_mut()
    {
        fields.remove("group");
    }
    let object = json!({
        "metadata": {
            "name": name, "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": now,
            "labels": {LABEL: parts["mark"]},
        },
        "spec": spec,
        "status": {"conditions": [{
            "type": "Available", "status": "True", "reason": "Local", "lastTransitionTime": now,
            "message": "Local APIServices are always available",
        }]},
    });
    match server.backend.store.create(&resource.key("", name), stored::encode(resource, &object), None).await {
        Ok(_) | Err(Error::Exists(_)) => {}
        Err(error) => tracing::warn!(%error, name, "cannot create the APIService of a served version"),
    }
}

async fn remove(server: &ApiServer, resource: &Resource, name: &str) {
    let key = resource.key("", name);
    if let Some(entry) = server.backend.store.peek(&key)
        && let Err(error) = server.backend.store.delete(&key, entry.revision).await
    {
        tracing::warn!(%error, name, "cannot remove the APIService of a version that is no longer served");
    }
}
