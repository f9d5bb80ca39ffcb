use super::super::tests::run_as;
use super::*;
use crate::object_reader::tests::{Fixed, Unreadable};
use serde_json::json;

const HANDLE: &str = "6f1d";

fn driver(name: &str, controller: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"csi.knarr.io/controller": controller}}})
}

fn class(name: &str, provisioner: &str, secret: &str) -> Value {
    let parameters = match secret {
        "" => json!({}),
        secret => json!({
            "csi.storage.k8s.io/node-publish-secret-name": secret,
            "csi.storage.k8s.io/node-publish-secret-namespace": "${pvc.namespace}",
        }),
    };
    json!({"metadata": {"name": name}, "provisioner": provisioner, "parameters": parameters})
}

fn claim(name: &str, class: &str, volume: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "n", "uid": format!("{name}-uid"), "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"storageClassName": class, "volumeName": volume}})
}

fn volume(claim: &str, driver: &str, class: &str, handle: &str, node: &str) -> Value {
    let terms =
        json!([{"matchExpressions": [{"key": "topology.local.knarr.io/node", "operator": "In", "values": [node]}]}]);
    json!({"kind": "PersistentVolume", "metadata": {"name": format!("pvc-{claim}-uid"), "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"storageClassName": class, "csi": {"driver": driver, "volumeHandle": handle}, "capacity": {"storage": "1"},
            "claimRef": {"namespace": "n", "name": claim, "uid": format!("{claim}-uid")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})
}

fn content(snapshot: &str, handle: &str, node: &str) -> Value {
    json!({"kind": "VolumeSnapshotContent", "metadata": {"name": "c", "annotations": {"csi.knarr.io/node": node}},
        "spec": {"driver": "local.knarr.io", "source": {"volumeHandle": handle},
            "volumeSnapshotRef": {"namespace": "n", "name": snapshot, "uid": "s-uid"}}})
}

fn objects() -> Fixed {
    let snapshot = json!({"metadata": {"name": "s", "namespace": "n", "uid": "s-uid"},
        "spec": {"source": {"persistentVolumeClaimName": "bound"}}});
    Fixed::new(vec![
        ("storage.k8s.io", "csidrivers", driver("local.knarr.io", "built-in")),
        ("storage.k8s.io", "csidrivers", driver("disk.example.com", "built-in")),
        ("storage.k8s.io", "csidrivers", driver("other.example.com", "")),
        ("storage.k8s.io", "storageclasses", class("local", "local.knarr.io", "")),
        ("storage.k8s.io", "storageclasses", class("disk", "disk.example.com", "key-${pvc.name}")),
        ("storage.k8s.io", "storageclasses", class("other", "other.example.com", "")),
        ("", "persistentvolumeclaims", claim("wanted", "local", "")),
        ("", "persistentvolumeclaims", claim("secret", "disk", "")),
        ("", "persistentvolumeclaims", claim("foreign", "other", "")),
        ("", "persistentvolumeclaims", claim("bound", "local", "pvc-bound-uid")),
        ("", "persistentvolumes", volume("bound", "local.knarr.io", "local", HANDLE, "one")),
        ("", "persistentvolumes", volume("far", "local.knarr.io", "local", "77", "two")),
        ("snapshot.storage.k8s.io", "volumesnapshots", snapshot),
    ])
}

/// The object with the value at a path.
fn with(mut object: Value, path: &[&str], value: Value) -> Value {
    object.set(path, value);
    object
}

/// What keeps the storage of node `one` from a write; empty if nothing does.
async fn refusal(operation: Operation, kind: (&str, &str), object: Value, old: Option<Value>) -> String {
    let user = User::named("knarr:node-storage:one", &[GROUP]);
    run_as(&user, &NodeStorage, operation, kind, object, old, &objects()).await.err().unwrap_or_default()
}

/// The objects of these cases are allowed if the last text is empty.
async fn check(kind: (&str, &str), cases: Vec<(Operation, Value, Option<Value>, &str)>) {
    for (operation, object, old, part) in cases {
        let said = refusal(operation, kind, object.clone(), old.clone()).await;
        assert!(
            if part.is_empty() { said.is_empty() } else { said.contains(part) },
            "{operation:?} {object} {old:?}: {said}"
        );
    }
}

#[tokio::test]
async fn a_node_creates_volumes_for_claims_of_its_drivers_and_names_no_secrets_of_others() {
    use Operation::{Create, Delete, Update};
    let local = |claim: &str, handle: &str, node: &str| volume(claim, "local.knarr.io", "local", handle, node);
    let own = || local("wanted", "new", "one");
    let disk = || volume("secret", "disk.example.com", "disk", "d", "zone");
    let reference = |namespace: &str, name: &str| json!({"namespace": namespace, "name": name});
    let publish = ["spec", "csi", "nodePublishSecretRef"];
    let stage = ["spec", "csi", "nodeStageSecretRef"];
    let capacity = ["spec", "capacity", "storage"];
    let finalizers = ["metadata", "finalizers"];
    let both = json!(["kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"]);
    let (bound, far) = (|| local("bound", HANDLE, "one"), || local("far", "77", "two"));
    let cases = vec![
        (Create, own(), None, ""),
        (Create, with(own(), &publish, reference("kube-system", "token")), None, "name Secrets that the class"),
        (Create, with(own(), &stage, reference("", "token")), None, "name Secrets that the class"),
        (Create, disk(), None, ""),
        (Create, with(disk(), &publish, reference("n", "key-secret")), None, ""),
        (Create, with(disk(), &publish, reference("kube-system", "key-secret")), None, "name Secrets that the class"),
        (Create, with(disk(), &stage, reference("n", "key-secret")), None, "name Secrets that the class"),
        (
            Create,
            with(disk(), &["spec", "csi", "controllerExpandSecretRef"], reference("n", "key-secret")),
            None,
            "Secrets",
        ),
        (Create, with(own(), &["spec", "hostPath"], json!({"path": "/"})), None, "create volumes of drivers"),
        (Create, with(own(), &["spec", "csi"], Value::Null), None, "drivers that nodes serve"),
        (Create, with(own(), &["spec", "mountOptions"], json!(["suid"])), None, "as claims and their classes ask for"),
        (Create, volume("foreign", "other.example.com", "other", "x", "one"), None, "drivers that nodes serve"),
        (Create, volume("foreign", "local.knarr.io", "other", "x", "one"), None, "as claims and their classes ask for"),
        (
            Create,
            with(own(), &["spec", "claimRef", "uid"], json!("another")),
            None,
            "as claims and their classes ask for",
        ),
        (Create, local("absent", "x", "one"), None, "create volumes for claims"),
        (Create, with(own(), &["metadata", "name"], json!("another")), None, "as claims and their classes ask for"),
        (Create, local("wanted", "new", "two"), None, "local volumes of its own"),
        (Create, local("wanted", HANDLE, "one"), None, "that are no other's"),
        (Update, with(bound(), &capacity, json!("2")), Some(bound()), ""),
        (Update, with(bound(), &finalizers, both), Some(bound()), ""),
        (Update, with(bound(), &finalizers, json!([])), Some(bound()), "change metadata of its own"),
        (Update, with(bound(), &publish, reference("n", "s")), Some(bound()), "change the size and class of volumes"),
        (
            Update,
            with(bound(), &["spec", "claimRef", "name"], json!("x")),
            Some(bound()),
            "the size and class of volumes",
        ),
        (Update, with(far(), &capacity, json!("2")), Some(far()), "local volumes of its own"),
        (Delete, Value::Null, Some(bound()), ""),
        (Delete, Value::Null, Some(far()), "local volumes of its own"),
        (Delete, Value::Null, Some(volume("x", "other.example.com", "other", "x", "one")), "drivers that nodes serve"),
    ];
    check(("", "persistentvolumes"), cases).await;
}

#[tokio::test]
async fn a_node_marks_claims_of_its_drivers_and_changes_nothing_else_of_them() {
    use Operation::Update;
    let wanted = || claim("wanted", "local", "");
    let foreign = || claim("foreign", "other", "");
    let annotation = |key: &'static str| ["metadata", "annotations", key];
    let finalizers = ["metadata", "finalizers"];
    let marked = json!(["kubernetes.io/pvc-protection", "csi.knarr.io/provisioning"]);
    let selected = annotation("volume.kubernetes.io/selected-node");
    let cases = vec![
        (Update, with(wanted(), &finalizers, marked.clone()), Some(wanted()), ""),
        (Update, with(wanted(), &selected, json!("one")), Some(wanted()), ""),
        (Update, with(wanted(), &selected, json!("two")), Some(wanted()), "name itself"),
        (Update, with(wanted(), &annotation("a"), json!("b")), Some(wanted()), "change metadata of its own"),
        (
            Update,
            with(wanted(), &["metadata", "labels", "a"], json!("b")),
            Some(wanted()),
            "change metadata of its own",
        ),
        (Update, with(wanted(), &finalizers, json!([])), Some(wanted()), "change metadata of its own"),
        (Update, with(wanted(), &["spec", "volumeName"], json!("v")), Some(wanted()), "leave the spec of a claim"),
        (Update, with(foreign(), &finalizers, marked), Some(foreign()), "drivers that nodes serve"),
    ];
    check(("", "persistentvolumeclaims"), cases).await;
    let far = || claim("far", "local", "pvc-far-uid");
    let phase = ["status", "phase"];
    let cases = vec![
        (Update, with(wanted(), &phase, json!("Bound")), Some(wanted()), ""),
        (Update, with(foreign(), &phase, json!("Bound")), Some(foreign()), "drivers that nodes serve"),
        (Update, with(far(), &phase, json!("Bound")), Some(far()), "local volumes of its own"),
    ];
    check(("", "persistentvolumeclaims/status"), cases).await;
}

/// The Leases of kube-system decide which scheduler and controllers run, and say which names no node is certified for.
#[tokio::test]
async fn a_node_holds_no_leases_but_those_of_its_drivers() {
    use Operation::{Create, Update};
    let lease =
        |namespace: &str, name: &str| json!({"kind": "Lease", "metadata": {"namespace": namespace, "name": name}});
    let mut cases = vec![(Create, lease("kube-system", "csi-disk-example-com"), None, "")];
    for (namespace, name) in [
        ("kube-system", "kube-scheduler"),
        ("kube-system", "kube-controller-manager"),
        ("kube-system", "apiserver-x"),
        ("kube-system", "csi-other-example-com"),
        ("kube-node-lease", "two"),
        ("n", "csi-disk-example-com"),
    ] {
        let because = "hold Leases of drivers that nodes serve";
        cases.push((Update, lease(namespace, name), Some(lease(namespace, name)), because));
        cases.push((Create, lease(namespace, name), None, because));
    }
    check(("coordination.k8s.io", "leases"), cases).await;
}

#[tokio::test]
async fn a_node_writes_snapshots_attachments_and_capacities_of_its_drivers_only() {
    use Operation::{Create, Delete, Update};
    let contents = ("snapshot.storage.k8s.io", "volumesnapshotcontents");
    let own = || content("s", HANDLE, "one");
    let cases = vec![
        (Create, own(), None, ""),
        (Create, content("s", "77", "one"), None, "the volume that a snapshot is taken of"),
        (Create, content("s", HANDLE, "two"), None, "create contents of its own"),
        (Create, content("absent", HANDLE, "one"), None, "the volume that a snapshot is taken of"),
        (Create, with(own(), &["spec", "source", "snapshotHandle"], json!("x")), None, "a snapshot is taken of"),
        (Create, with(own(), &["spec", "driver"], json!("other.example.com")), None, "drivers that nodes serve"),
        (Update, with(own(), &["status", "readyToUse"], json!(true)), Some(own()), ""),
        (Update, content("s", "77", "one"), Some(own()), "complete the reference"),
        (Update, content("s", HANDLE, "two"), Some(own()), "name itself"),
        (Update, own(), Some(content("s", HANDLE, "two")), "write contents of its own"),
        (Delete, Value::Null, Some(own()), ""),
        (Delete, Value::Null, Some(content("s", HANDLE, "two")), "write contents of its own"),
    ];
    check(contents, cases).await;
    let attachment =
        |attacher: &str| json!({"kind": "VolumeAttachment", "metadata": {"name": "a"}, "spec": {"attacher": attacher}});
    let cases = vec![
        (Update, attachment("disk.example.com"), Some(attachment("disk.example.com")), ""),
        (Update, attachment("other.example.com"), Some(attachment("other.example.com")), "drivers that nodes serve"),
    ];
    check(("storage.k8s.io", "volumeattachments/status"), cases).await;
    let disk = || attachment("disk.example.com");
    let (finalizers, owners) = (["metadata", "finalizers"], ["metadata", "ownerReferences"]);
    let own = json!(["external-attacher/disk-example-com"]);
    let node_id = ["metadata", "annotations", "csi.alpha.kubernetes.io/node-id"];
    let held = || with(disk(), &finalizers, json!(["example.com/hold"]));
    let owner = json!([{"kind": "Node", "name": "two"}]);
    let cases = vec![
        (Update, with(with(disk(), &finalizers, own.clone()), &node_id, json!("n1")), Some(disk()), ""),
        (Update, disk(), Some(with(disk(), &finalizers, own)), ""),
        (Update, disk(), Some(held()), "change metadata of its own"),
        (Update, held(), Some(disk()), "change metadata of its own"),
        (Update, with(disk(), &owners, owner.clone()), Some(disk()), "change metadata of its own"),
        (Update, with(disk(), &["spec", "nodeName"], json!("two")), Some(disk()), "report on attachments"),
    ];
    check(("storage.k8s.io", "volumeattachments"), cases).await;
    let capacity = |class: &str, driver: &str, node: &str| {
        json!({"kind": "CSIStorageCapacity", "storageClassName": class, "metadata": {"namespace": "kube-system", "name": "c",
            "labels": {"csi.storage.k8s.io/drivername": driver}, "ownerReferences": [{"kind": "Node", "name": node}]}})
    };
    let local = || capacity("local", "local.knarr.io", "one");
    let label = ["metadata", "labels", "csi.storage.k8s.io/drivername"];
    let cases = vec![
        (Update, with(local(), &["capacity"], json!("1Gi")), Some(local()), ""),
        (Update, with(local(), &label, json!("disk.example.com")), Some(local()), "change metadata of its own"),
        (Update, with(local(), &label, json!("other.example.com")), Some(local()), "change metadata of its own"),
        (Update, with(local(), &owners, json!([])), Some(local()), "change metadata of its own"),
        (Update, with(local(), &owners, owner), Some(local()), "change metadata of its own"),
        (Update, with(local(), &finalizers, json!(["example.com/hold"])), Some(local()), "change metadata of its own"),
        (Update, local(), Some(capacity("local", "local.knarr.io", "two")), "the capacity of its own node"),
        (Create, capacity("local", "local.knarr.io", "one"), None, ""),
        (Create, capacity("other", "local.knarr.io", "one"), None, "of the driver's classes"),
        (Create, capacity("other", "other.example.com", "one"), None, "drivers that nodes serve"),
        (Delete, Value::Null, Some(capacity("gone", "local.knarr.io", "one")), ""),
        (Delete, Value::Null, Some(capacity("local", "local.knarr.io", "two")), "the capacity of its own node"),
    ];
    check(("storage.k8s.io", "csistoragecapacities"), cases).await;
}

#[tokio::test]
async fn what_cannot_be_read_refuses_the_writes_of_nodes_and_others_are_not_restricted() {
    let volume = || volume("wanted", "local.knarr.io", "local", "new", "one");
    let user = User::named("knarr:node-storage:one", &[GROUP]);
    let kind = ("", "persistentvolumes");
    let refused = run_as(&user, &NodeStorage, Operation::Create, kind, volume(), None, &Unreadable).await;
    assert!(refused.unwrap_err().contains("cannot be read"));
    let user = User::named("ann", &["system:authenticated"]);
    let secret =
        with(volume(), &["spec", "csi", "nodePublishSecretRef"], json!({"namespace": "kube-system", "name": "s"}));
    assert!(run_as(&user, &NodeStorage, Operation::Create, kind, secret, None, &objects()).await.is_ok());
}
