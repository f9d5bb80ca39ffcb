//! Plans for volumes as tables.

use super::matching::NO_SPACE;
use super::*;
use serde_json::{Value, json};

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn volume(name: &str, size: &str, more: Value) -> Arc<PersistentVolume> {
    let mut spec = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late"});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object(json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}))
}

fn storage() -> Storage {
    let mut storage = Storage::default();
    for (name, provisioner, mode) in [
        ("late", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
        ("made", "driver", "WaitForFirstConsumer"),
        ("now", "driver", "Immediate"),
    ] {
        let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode,
            "allowedTopologies": if name == "made" {
                json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]) } else { Value::Null }});
        storage.set_class(None, Some(&object(class)));
    }
    let on_b = json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}});
    for volume in [
        volume("large", "9Gi", json!({})),
        volume("small", "2Gi", json!({})),
        volume("tiny", "1Mi", json!({})),
        volume("far", "1Gi", on_b),
        volume("block", "1Gi", json!({"volumeMode": "Block"})),
        volume("taken", "1Gi", json!({"claimRef": {"namespace": "n", "name": "other"}})),
    ] {
        storage.set_volume(None, Some(&volume));
    }
    for (name, class, annotations) in [
        ("claim", "late", json!({})),
        ("made", "made", json!({})),
        ("elsewhere", "made", json!({"volume.kubernetes.io/selected-node": "other"})),
        ("copy", "made", json!({"csi.knarr.io/source-node": "node"})),
        ("copy-elsewhere", "made", json!({"csi.knarr.io/source-node": "other"})),
        ("now", "now", json!({})),
    ] {
        let claim = json!({"metadata": {"namespace": "n", "name": name, "annotations": annotations}, "spec":
            {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        storage.set_claim(None, Some(&object(claim)));
    }
    let bound = json!({"metadata": {"namespace": "n", "name": "bound", "annotations":
        {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "far"}});
    storage.set_claim(None, Some(&object(bound)));
    storage
}

fn pod(claims: &[&str]) -> PodState {
    let volumes: Vec<Value> =
        claims.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})).collect();
    let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [], "volumes": volumes}});
    PodState::new(object(pod))
}

fn node(zone: &str) -> NodeState {
    NodeState::new(object(json!({"metadata": {"name": "node", "labels": {"zone": zone}}})))
}

/// What is bound and provisioned, or why not.
fn planned(claims: &[&str], zone: &str, storage: &Storage) -> String {
    let pod = pod(claims);
    let name = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        metadata.name.clone().unwrap_or_default()
    };
    match sort_claims(&pod, storage).map(|claims| claims.plan(storage, &node(zone))) {
        Err(reason) => reason,
        Ok(Err(reasons)) => reasons.join(", "),
        Ok(Ok(plan)) => {
            let bound: Vec<String> = plan.bind.iter().map(|(_, volume)| name(&volume.metadata)).collect();
            let provisioned: Vec<String> = plan.provision.iter().map(|claim| name(&claim.metadata)).collect();
            format!("bind [{}] make [{}]", bound.join(" "), provisioned.join(" "))
        }
    }
}

#[test]
fn volumes_are_found_provisioned_or_missing() {
    let storage = storage();
    for (claims, zone, outcome) in [
        (&["claim"][..], "a", "bind [small] make []"),
        (&["claim"], "b", "bind [far] make []"),
        (&["made"], "a", "bind [] make [made]"),
        (&["made"], "b", NO_VOLUME),
        (&["elsewhere"], "a", NO_VOLUME),
        (&["copy"], "a", "bind [] make [copy]"),
        (&["copy-elsewhere"], "a", NO_VOLUME),
        (&["claim", "made"], "a", "bind [small] make [made]"),
        (&["now"], "a", "pod has unbound immediate PersistentVolumeClaims"),
        (&["missing"], "a", "persistentvolumeclaim \"missing\" not found"),
        (&["bound"], "b", "bind [] make []"),
        (&["bound"], "a", OTHER_NODE),
    ] {
        assert_eq!(planned(claims, zone, &storage), outcome, "{claims:?} in {zone}");
    }
}

#[test]
fn promises_count_until_they_end() {
    let mut storage = storage();
    storage.assume_volume("small", "n/other");
    assert_eq!(planned(&["claim"], "a", &storage), "bind [large] make []");
    storage.assume_node("n/made", "another");
    assert_eq!(planned(&["made"], "a", &storage), NO_VOLUME);
    storage.drop_assumptions("n/other");
    storage.drop_assumptions("n/made");
    assert_eq!(planned(&["claim", "made"], "a", &storage), "bind [small] make [made]");
}

#[test]
fn drivers_that_keep_count_must_have_room() {
    let mut storage = storage();
    storage.set_csi_driver(
        None,
        Some(&object(json!({"metadata": {"name": "driver"}, "spec": {"storageCapacity": true}}))),
    );
    assert_eq!(planned(&["made"], "a", &storage), NO_SPACE);
    let capacity = |size: &str| {
        object(json!({"metadata": {"namespace": "n", "name": "c"}, "storageClassName": "made", "capacity": size,
            "nodeTopology": {"matchLabels": {"zone": "a"}}}))
    };
    storage.set_capacity(None, Some(&capacity("1Mi")));
    assert_eq!(planned(&["made"], "a", &storage), NO_SPACE);
    storage.set_capacity(None, Some(&capacity("5Gi")));
    assert_eq!(planned(&["made"], "a", &storage), "bind [] make [made]");
}
