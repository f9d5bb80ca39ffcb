//! Which nodes may use which disks of a storage network. The nodes' `volumesAttached` are the durable copy of it.

use std::collections::{BTreeMap, HashMap};

use super::Controller;
use super::names::VolumeId;
use crate::error::Result;

#[derive(Default)]
pub(super) struct Disks(HashMap<VolumeId, BTreeMap<String, Progress>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Attached,
    /// The node must not mount it any more, but may have done so.
    Releasing,
}

impl Disks {
    pub fn attach(&mut self, id: &VolumeId, node: &str) {
        self.0.entry(id.clone()).or_default().insert(node.to_owned(), Progress::Attached);
    }

    fn release(&mut self, id: &VolumeId, node: &str) {
        if let Some(progress) = self.0.get_mut(id).and_then(|nodes| nodes.get_mut(node)) {
            *progress = Progress::Releasing;
        }
    }

    fn detach(&mut self, id: &VolumeId, node: &str) {
        let Some(nodes) = self.0.get_mut(id) else { return };
        nodes.remove(node);
        if nodes.is_empty() {
            self.0.remove(id);
        }
    }

    /// The nodes that have a disk, or may still have it.
    pub fn nodes_of(&self, id: &VolumeId) -> std::vec::IntoIter<String> {
        let nodes: Vec<String> = self.0.get(id).into_iter().flat_map(|nodes| nodes.keys().cloned()).collect();
        nodes.into_iter()
    }

    /// The disks that a node has, or may still have.
    pub fn on_node(&self, node: &str) -> std::vec::IntoIter<VolumeId> {
        let has_it = self.0.iter().filter(|(_, nodes)| nodes.contains_key(node));
        let ids: Vec<VolumeId> = has_it.map(|(id, _)| id.clone()).collect();
        ids.into_iter()
    }

    /// The names of the disks that a node may mount.
    pub fn reported_to(&self, node: &str) -> Vec<String> {
        let may_mount = self.0.iter().filter(|(_, nodes)| nodes.get(node) == Some(&Progress::Attached));
        may_mount.map(|(id, _)| id.unique_name()).collect()
    }
}

impl Controller {
    /// As for volumes of drivers: the node learns first that it must not mount the disk.
    pub(super) async fn detach_disk(&self, id: &VolumeId, node: &str, verify: bool) -> Result<()> {
        self.state.lock().disks.release(id, node);
        let revoked = self.revoke(id, node, verify).await;
        match &revoked {
            Ok(()) => {
                let mut state = self.state.lock();
                state.disks.detach(id, node);
                state.in_use.remove(&id.attachment_name(node));
                drop(state);
                tracing::info!(volume = id.unique_name(), node, forced = !verify, "released a disk");
                // Another node may wait for it.
                self.queue.add(id.clone());
            }
            Err(_) => {
                self.state.lock().disks.attach(id, node);
                self.node_queue.add(node.to_owned());
            }
        }
        revoked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_mounts_only_what_is_not_being_released() {
        let (id, mut disks) = (VolumeId::new("kubernetes.io/iscsi", "p:t:0"), Disks::default());
        disks.attach(&id, "a");
        assert_eq!(disks.reported_to("a"), ["kubernetes.io/iscsi/p:t:0"]);
        disks.release(&id, "a");
        assert_eq!(disks.reported_to("a"), Vec::<String>::new());
        assert_eq!(disks.nodes_of(&id).collect::<Vec<_>>(), ["a"], "no other node gets it yet");
        assert_eq!(disks.on_node("a").collect::<Vec<_>>(), std::slice::from_ref(&id));
        disks.detach(&id, "a");
        assert_eq!(disks.nodes_of(&id).len(), 0);
    }
}
