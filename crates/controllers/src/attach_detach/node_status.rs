//! Keeps `volumesAttached` of the nodes: what a kubelet may mount.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::plan::State;
use super::{BY_NODE, Controller};
use crate::common::key::name;
use crate::error::{Result, ignore_not_found};

impl Controller {
    /// Writes the attached volumes into the node's status, if it does not list them already.
    pub(super) async fn report_attached(&self, node: &str) -> Result<()> {
        let lock = Arc::clone(self.node_locks.lock().entry(node.to_owned()).or_default());
        let _one_writer = lock.lock().await;
        let Some(object) = self.nodes.get("", node) else {
            self.state.lock().reported.remove(node);
            // Nodes come and go; a lock that someone waits for has more references than the map's and this one.
            let mut locks = self.node_locks.lock();
            if Arc::strong_count(&lock) == 2 {
                locks.remove(node);
            }
            return Ok(());
        };
        let attached = self.attached_to(node);
        let listed = object.status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
        let listed: Vec<&str> = listed.map(|volume| volume.name.as_str()).collect();
        // The cache may not show what was written last.
        let is_written = self.state.lock().reported.get(node).is_none_or(|reported| *reported == attached);
        if is_written && listed == attached {
            return Ok(());
        }
        let api: Api<Node> = Api::all(self.context.client.clone());
        let patch = Patch::Merge(status_patch(&attached));
        ignore_not_found(api.patch_status(node, &PatchParams::default(), &patch).await)?;
        self.state.lock().reported.insert(node.to_owned(), attached);
        Ok(())
    }

    fn attached_to(&self, node: &str) -> Vec<String> {
        let attachments = self.attachments.by_index(BY_NODE, node);
        let disks = self.state.lock().disks.reported_to(node);
        let mut names: Vec<String> = attachments
            .iter()
            .filter(|attachment| self.state_of(name(&***attachment)) == Some(State::Attached))
            .filter_map(|attachment| Some(self.id_of(attachment)?.unique_name()))
            .chain(disks)
            .collect();
        names.sort();
        names
    }
}

fn status_patch(attached: &[String]) -> Value {
    let volumes: Vec<Value> = attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
    let volumes = if volumes.is_empty() { Value::Null } else { volumes.into() };
    json!({"status": {"volumesAttached": volumes}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_is_removed() {
        assert_eq!(status_patch(&[]), json!({"status": {"volumesAttached": null}}));
        let one = json!({"status": {"volumesAttached": [{"name": "v", "devicePath": ""}]}});
        assert_eq!(status_patch(&["v".to_owned()]), one);
    }
}
