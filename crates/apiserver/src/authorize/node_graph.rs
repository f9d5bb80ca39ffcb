//! The graph of objects that belong to each node: pods bound to it and the objects that they use. It is updated as pods,
//! volumes, attachments and resource slices change.

use std::collections::HashMap;

use knarr_api::value::Read;
use parking_lot::RwLock;
use serde_json::Value;

use crate::selection::projection::Projection;

/// The kinds of objects in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VertexKind {
    Pod,
    Secret,
    ConfigMap,
    Claim,
    Volume,
    ServiceAccount,
    ResourceClaim,
    ResourceSlice,
    Attachment,
}

type Key = (VertexKind, String, String);

/// Counts for each object how many pods of each node use it. A volume is related to the pods of its claim.
#[derive(Default)]
pub struct NodeGraph {
    edges: RwLock<Edges>,
}

#[derive(Default)]
struct Edges {
    /// Object → node → number of uses.
    uses: HashMap<Key, HashMap<String, usize>>,
    /// Volume → the claim it is bound to, and the secrets it names.
    volumes: HashMap<String, VolumeEdges>,
}

struct VolumeEdges {
    claim: Key,
    secrets: Vec<Key>,
}

impl NodeGraph {
    /// Whether an object is related to a node.
    pub fn reaches(&self, kind: VertexKind, namespace: &str, name: &str, node: &str) -> bool {
        let edges = self.edges.read();
        let key = (kind, namespace.to_owned(), name.to_owned());
        if edges.used_on(&key, node) {
            return true;
        }
        match kind {
            VertexKind::Volume => edges.volumes.get(name).is_some_and(|volume| edges.used_on(&volume.claim, node)),
            VertexKind::Secret => {
                edges.volumes.values().any(|volume| volume.secrets.contains(&key) && edges.used_on(&volume.claim, node))
            }
            _ => false,
        }
    }

    pub fn pod_changed(&self, old: Option<&Value>, new: Option<&Value>) {
        let before = old.and_then(pod_edges);
        let after = new.and_then(pod_edges);
        if before == after {
            return;
        }
        let mut edges = self.edges.write();
        for (edges_of, by) in [(before, -1), (after, 1)] {
            let Some((node, keys)) = edges_of else { continue };
            keys.into_iter().for_each(|key| edges.count(key, &node, by));
        }
    }

    pub fn volume_changed(&self, old: Option<&Value>, new: Option<&Value>) {
        let mut edges = self.edges.write();
        if let Some(old) = old {
            edges.volumes.remove(old.text(&["metadata", "name"]));
        }
        if let Some(new) = new {
            let reference = new.at(&["spec", "claimRef"]);
            let namespace = reference.text(&["namespace"]).to_owned();
            let claim = (VertexKind::Claim, namespace.clone(), reference.text(&["name"]).to_owned());
            let secrets = volume_secrets(new, &namespace);
            edges.volumes.insert(new.text(&["metadata", "name"]).to_owned(), VolumeEdges { claim, secrets });
        }
    }

    pub fn attachment_changed(&self, old: Option<&Value>, new: Option<&Value>) {
        self.owned_changed(VertexKind::Attachment, old, new);
    }

    pub fn slice_changed(&self, old: Option<&Value>, new: Option<&Value>) {
        self.owned_changed(VertexKind::ResourceSlice, old, new);
    }

    /// Updates a cluster-scoped object that names its node in `spec.nodeName`.
    fn owned_changed(&self, kind: VertexKind, old: Option<&Value>, new: Option<&Value>) {
        let mut edges = self.edges.write();
        for (object, by) in [(old, -1), (new, 1)] {
            let Some(object) = object else { continue };
            let node = object.text(&["spec", "nodeName"]);
            if !node.is_empty() {
                edges.count((kind, String::new(), object.text(&["metadata", "name"]).to_owned()), node, by);
            }
        }
    }
}

impl Edges {
    fn used_on(&self, key: &Key, node: &str) -> bool {
        self.uses.get(key).is_some_and(|nodes| nodes.contains_key(node))
    }

    fn count(&mut self, key: Key, node: &str, by: isize) {
        let nodes = self.uses.entry(key.clone()).or_default();
        let count = nodes.get(node).copied().unwrap_or(0).saturating_add_signed(by);
        if count > 0 {
            nodes.insert(node.to_owned(), count);
        } else {
            nodes.remove(node);
        }
        if nodes.is_empty() {
            self.uses.remove(&key);
        }
    }
}

/// The fields of a pod that the graph reads.
pub const POD_FIELDS: Projection = Projection::Fields(&[
    (
        "metadata",
        Projection::Fields(&[
            ("annotations", Projection::All),
            ("name", Projection::All),
            ("namespace", Projection::All),
        ]),
    ),
    (
        "spec",
        Projection::Fields(&[
            ("containers", CONTAINER_FIELDS),
            ("ephemeralContainers", CONTAINER_FIELDS),
            ("imagePullSecrets", Projection::All),
            ("initContainers", CONTAINER_FIELDS),
            ("nodeName", Projection::All),
            ("resourceClaims", Projection::All),
            ("serviceAccountName", Projection::All),
            ("volumes", Projection::All),
        ]),
    ),
    (
        "status",
        Projection::Fields(&[
            ("extendedResourceClaimStatus", Projection::All),
            ("resourceClaimStatuses", Projection::All),
        ]),
    ),
]);
const CONTAINER_FIELDS: Projection =
    Projection::Fields(&[("env", Projection::Fields(&[("valueFrom", Projection::All)])), ("envFrom", Projection::All)]);

/// The node of a bound pod and all objects it uses. A mirror pod grants its node nothing, since the kubelet itself
/// created it.
fn pod_edges(pod: &Value) -> Option<(String, Vec<Key>)> {
    let node = pod.text(&["spec", "nodeName"]);
    if node.is_empty() {
        return None;
    }
    let namespace = pod.text(&["metadata", "namespace"]);
    let name = pod.text(&["metadata", "name"]);
    let key = |kind: VertexKind, name: &str| (kind, namespace.to_owned(), name.to_owned());
    let mut keys = vec![key(VertexKind::Pod, name)];
    if pod.at(&["metadata", "annotations"]).get("kubernetes.io/config.mirror").is_some() {
        return Some((node.to_owned(), keys));
    }
    let account = pod.text(&["spec", "serviceAccountName"]);
    if !account.is_empty() {
        keys.push(key(VertexKind::ServiceAccount, account));
    }
    for secret in pod.items(&["spec", "imagePullSecrets"]) {
        keys.push(key(VertexKind::Secret, secret.text(&["name"])));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in pod.items(&["spec", list]) {
            container_references(container, &mut |kind, name| keys.push(key(kind, name)));
        }
    }
    for volume in pod.items(&["spec", "volumes"]) {
        volume_references(volume, name, &mut |kind, name| keys.push(key(kind, name)));
    }
    for claim in pod.items(&["status", "resourceClaimStatuses"]) {
        keys.push(key(VertexKind::ResourceClaim, claim.text(&["resourceClaimName"])));
    }
    keys.push(key(
        VertexKind::ResourceClaim,
        pod.text(&["status", "extendedResourceClaimStatus", "resourceClaimName"]),
    ));
    for claim in pod.items(&["spec", "resourceClaims"]) {
        keys.push(key(VertexKind::ResourceClaim, claim.text(&["resourceClaimName"])));
    }
    keys.retain(|(_, _, name)| !name.is_empty());
    Some((node.to_owned(), keys))
}

fn container_references(container: &Value, add: &mut impl FnMut(VertexKind, &str)) {
    for source in container.items(&["envFrom"]) {
        add(VertexKind::ConfigMap, source.text(&["configMapRef", "name"]));
        add(VertexKind::Secret, source.text(&["secretRef", "name"]));
    }
    for variable in container.items(&["env"]) {
        add(VertexKind::ConfigMap, variable.text(&["valueFrom", "configMapKeyRef", "name"]));
        add(VertexKind::Secret, variable.text(&["valueFrom", "secretKeyRef", "name"]));
    }
}

fn volume_references(volume: &Value, pod: &str, add: &mut impl FnMut(VertexKind, &str)) {
    add(VertexKind::Secret, volume.text(&["secret", "secretName"]));
    add(VertexKind::ConfigMap, volume.text(&["configMap", "name"]));
    add(VertexKind::Claim, volume.text(&["persistentVolumeClaim", "claimName"]));
    if volume.has(&["ephemeral"]) {
        add(VertexKind::Claim, &format!("{pod}-{}", volume.text(&["name"])));
    }
    for source in volume.items(&["projected", "sources"]) {
        add(VertexKind::Secret, source.text(&["secret", "name"]));
        add(VertexKind::ConfigMap, source.text(&["configMap", "name"]));
    }
    for kind in ["csi", "flexVolume", "cephfs", "cinder", "rbd", "iscsi", "scaleIO", "storageos"] {
        for field in ["secretRef", "nodePublishSecretRef"] {
            add(VertexKind::Secret, volume.text(&[kind, field, "name"]));
        }
    }
    add(VertexKind::Secret, volume.text(&["azureFile", "secretName"]));
}

fn volume_secrets(volume: &Value, claim_namespace: &str) -> Vec<Key> {
    let csi = volume.at(&["spec", "csi"]);
    ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"]
        .iter()
        .map(|field| csi.at(&[field]))
        .filter(|reference| reference.has(&["name"]))
        .map(|reference| {
            let namespace = match reference.text(&["namespace"]) {
                "" => claim_namespace,
                namespace => namespace,
            };
            (VertexKind::Secret, namespace.to_owned(), reference.text(&["name"]).to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_a_pod_uses_are_related_while_the_pod_is_bound() {
        let graph = NodeGraph::default();
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "one",
            "containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "c"}}}]}],
            "volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}});
        let volume = json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "n", "name": "data"},
            "csi": {"nodePublishSecretRef": {"namespace": "n", "name": "key"}}}});
        graph.pod_changed(None, Some(&pod));
        graph.volume_changed(None, Some(&volume));
        let reached = || {
            [
                (VertexKind::Pod, "n", "p"),
                (VertexKind::ConfigMap, "n", "c"),
                (VertexKind::Volume, "", "v"),
                (VertexKind::Secret, "n", "key"),
            ]
            .map(|(kind, namespace, name)| graph.reaches(kind, namespace, name, "one"))
        };
        assert_eq!(reached(), [true; 4]);
        graph.pod_changed(Some(&pod), None);
        assert_eq!(reached(), [false; 4]);
    }

    #[test]
    fn the_projection_holds_every_field_the_graph_reads() {
        let references =
            json!([{"name": "v", "valueFrom": {"secretKeyRef": {"name": "s1"}}}, {"name": "w", "value": "x"}]);
        let container =
            |from: &str| json!({"name": "c", "env": references, "envFrom": [{"configMapRef": {"name": from}}]});
        let pod = json!({
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}, "annotations": {"x": "y"}},
            "spec": {
                "nodeName": "one", "serviceAccountName": "account", "hostname": "h",
                "imagePullSecrets": [{"name": "pull"}],
                "containers": [container("m1")], "initContainers": [container("m2")],
                "ephemeralContainers": [container("m3")],
                "volumes": [{"name": "v", "secret": {"secretName": "s2"}}, {"name": "e", "ephemeral": {}},
                    {"name": "q", "projected": {"sources": [{"configMap": {"name": "m4"}}]}}],
                "resourceClaims": [{"name": "r", "resourceClaimName": "claim1"}],
            },
            "status": {
                "phase": "Running",
                "resourceClaimStatuses": [{"name": "r", "resourceClaimName": "claim2"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "claim3", "requestMappings": []},
            },
        });
        let projected = POD_FIELDS.read(pod.to_string().as_bytes()).unwrap();
        let edges = pod_edges(&pod).unwrap();
        assert_eq!(pod_edges(&projected).unwrap(), edges);
        assert_eq!(edges.1.len(), 15, "{edges:?}");
    }
}
