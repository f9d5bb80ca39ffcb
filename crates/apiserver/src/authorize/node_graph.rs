//! Which objects belong to which node: pods that are bound to it and what they use, followed as pods, volumes and
//! attachments change.

use std::collections::HashMap;

use knarr_api::value::Read;
use parking_lot::RwLock;
use serde_json::Value;

use crate::persist::projection::Projection;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
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

type Key = (Asked, String, String);

/// Counts, for each object, the pods of each node that use it. Volumes lead to their claim and on to its pods.
#[derive(Default)]
pub struct NodeGraph {
    edges: RwLock<Edges>,
}

#[derive(Default)]
struct Edges {
    /// Object → node → how many reasons there are.
    uses: HashMap<Key, HashMap<String, usize>>,
    /// Volume → the claim it is bound to, and the secrets it names.
    volumes: HashMap<String, VolumeEdges>,
}

struct VolumeEdges {
    claim: Key,
    secrets: Vec<Key>,
}

impl NodeGraph {
    pub fn reaches(&self, asked: Asked, namespace: &str, name: &str, node: &str) -> bool {
        let edges = self.edges.read();
        let key = (asked, namespace.to_owned(), name.to_owned());
        if edges.used_on(&key, node) {
            return true;
        }
        match asked {
            Asked::Volume => edges.volumes.get(name).is_some_and(|volume| edges.used_on(&volume.claim, node)),
            Asked::Secret => {
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
            let claim = (Asked::Claim, namespace.clone(), reference.text(&["name"]).to_owned());
            let secrets = volume_secrets(new, &namespace);
            edges.volumes.insert(new.text(&["metadata", "name"]).to_owned(), VolumeEdges { claim, secrets });
        }
    }

    pub fn attachment_changed(&self, old: Option<&Value>, new: Option<&Value>) {
        self.owned_changed(Asked::Attachment, old, new);
    }

    pub fn slice_changed(&self, old: Option<&Value>, new: Option<&Value>) {
        self.owned_changed(Asked::ResourceSlice, old, new);
    }

    /// Objects of the cluster that name their node in `spec.nodeName`.
    fn owned_changed(&self, asked: Asked, old: Option<&Value>, new: Option<&Value>) {
        let mut edges = self.edges.write();
        for (object, by) in [(old, -1), (new, 1)] {
            let Some(object) = object else { continue };
            let node = object.text(&["spec", "nodeName"]);
            if !node.is_empty() {
                edges.count((asked, String::new(), object.text(&["metadata", "name"]).to_owned()), node, by);
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

/// The node of a bound pod and all it uses. A mirror pod gives its node nothing: the kubelet itself made it.
/// All that is asked of a pod here.
pub const OF_POD: Projection = Projection::Fields(&[
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
            ("containers", OF_CONTAINER),
            ("ephemeralContainers", OF_CONTAINER),
            ("imagePullSecrets", Projection::All),
            ("initContainers", OF_CONTAINER),
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
const OF_CONTAINER: Projection =
    Projection::Fields(&[("env", Projection::Fields(&[("valueFrom", Projection::All)])), ("envFrom", Projection::All)]);

fn pod_edges(pod: &Value) -> Option<(String, Vec<Key>)> {
    let node = pod.text(&["spec", "nodeName"]);
    if node.is_empty() {
        return None;
    }
    let namespace = pod.text(&["metadata", "namespace"]);
    let name = pod.text(&["metadata", "name"]);
    let key = |asked: Asked, name: &str| (asked, namespace.to_owned(), name.to_owned());
    let mut keys = vec![key(Asked::Pod, name)];
    if pod.at(&["metadata", "annotations"]).get("kubernetes.io/config.mirror").is_some() {
        return Some((node.to_owned(), keys));
    }
    let account = pod.text(&["spec", "serviceAccountName"]);
    if !account.is_empty() {
        keys.push(key(Asked::ServiceAccount, account));
    }
    for secret in pod.items(&["spec", "imagePullSecrets"]) {
        keys.push(key(Asked::Secret, secret.text(&["name"])));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in pod.items(&["spec", list]) {
            container_references(container, &mut |asked, name| keys.push(key(asked, name)));
        }
    }
    for volume in pod.items(&["spec", "volumes"]) {
        volume_references(volume, name, &mut |asked, name| keys.push(key(asked, name)));
    }
    for claim in pod.items(&["status", "resourceClaimStatuses"]) {
        keys.push(key(Asked::ResourceClaim, claim.text(&["resourceClaimName"])));
    }
    keys.push(key(Asked::ResourceClaim, pod.text(&["status", "extendedResourceClaimStatus", "resourceClaimName"])));
    for claim in pod.items(&["spec", "resourceClaims"]) {
        keys.push(key(Asked::ResourceClaim, claim.text(&["resourceClaimName"])));
    }
    keys.retain(|(_, _, name)| !name.is_empty());
    Some((node.to_owned(), keys))
}

fn container_references(container: &Value, add: &mut impl FnMut(Asked, &str)) {
    for source in container.items(&["envFrom"]) {
        add(Asked::ConfigMap, source.text(&["configMapRef", "name"]));
        add(Asked::Secret, source.text(&["secretRef", "name"]));
    }
    for variable in container.items(&["env"]) {
        add(Asked::ConfigMap, variable.text(&["valueFrom", "configMapKeyRef", "name"]));
        add(Asked::Secret, variable.text(&["valueFrom", "secretKeyRef", "name"]));
    }
}

fn volume_references(volume: &Value, pod: &str, add: &mut impl FnMut(Asked, &str)) {
    add(Asked::Secret, volume.text(&["secret", "secretName"]));
    add(Asked::ConfigMap, volume.text(&["configMap", "name"]));
    add(Asked::Claim, volume.text(&["persistentVolumeClaim", "claimName"]));
    if volume.has(&["ephemeral"]) {
        add(Asked::Claim, &format!("{pod}-{}", volume.text(&["name"])));
    }
    for source in volume.items(&["projected", "sources"]) {
        add(Asked::Secret, source.text(&["secret", "name"]));
        add(Asked::ConfigMap, source.text(&["configMap", "name"]));
    }
    for kind in ["csi", "flexVolume", "cephfs", "cinder", "rbd", "iscsi", "scaleIO", "storageos"] {
        for field in ["secretRef", "nodePublishSecretRef"] {
            add(Asked::Secret, volume.text(&[kind, field, "name"]));
        }
    }
    add(Asked::Secret, volume.text(&["azureFile", "secretName"]));
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
            (Asked::Secret, namespace.to_owned(), reference.text(&["name"]).to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_pod_uses_is_reachable_while_the_pod_is_bound() {
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
                (Asked::Pod, "n", "p"),
                (Asked::ConfigMap, "n", "c"),
                (Asked::Volume, "", "v"),
                (Asked::Secret, "n", "key"),
            ]
            .map(|(asked, namespace, name)| graph.reaches(asked, namespace, name, "one"))
        };
        assert_eq!(reached(), [true; 4]);
        graph.pod_changed(Some(&pod), None);
        assert_eq!(reached(), [false; 4]);
    }

    #[test]
    fn what_is_picked_of_a_pod_is_all_that_is_asked_for() {
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
        let picked = OF_POD.read(pod.to_string().as_bytes()).unwrap();
        let edges = pod_edges(&pod).unwrap();
        assert_eq!(pod_edges(&picked).unwrap(), edges);
        assert_eq!(edges.1.len(), 15, "{edges:?}");
    }
}
