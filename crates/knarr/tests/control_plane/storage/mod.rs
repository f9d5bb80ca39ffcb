//! Claims, volumes, attachments and snapshots, with a CSI driver in memory and the built-in CSI controller, which is killed at
//! each point where a volume could be lost or leaked.

mod cluster;

use std::time::Duration;

use serde_json::json;

use crate::support::TIMEOUT;
use cluster::{Cluster, NODE};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_a_volume_on_the_node_of_its_pod_and_takes_it_along() {
    let cluster = Cluster::start(2, true).await;
    cluster.claim("data", "late", "2Gi");
    cluster
        .until_event("data", "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
        .await;
    cluster.pod("web", "data", None);
    let volume = cluster.until_is("pvc/data", ".spec.volumeName", |name| name.starts_with("pvc-"), "bound").await;
    cluster.until("pvc/data", ".status.phase", "Bound").await;
    cluster.until("pod/web", ".spec.nodeName", NODE).await;
    let volume = format!("pv/{volume}");
    let values = ".spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]";
    cluster.until(&volume, values, NODE).await;
    cluster.until("pvc/data", ".metadata.finalizers", r#"["kubernetes.io/pvc-protection"]"#).await;
    cluster.until_event("data", "ProvisioningSucceeded", "Successfully provisioned volume pvc-").await;
    // The capacity is what the driver has left, and a larger claim waits for room.
    let capacity = [
        "get",
        "csistoragecapacities",
        "-n",
        "kube-system",
        "-o",
        "jsonpath={.items[?(@.storageClassName=='late')].capacity}",
    ];
    let started = std::time::Instant::now();
    while cluster.kubectl(&capacity) != "8Gi" {
        assert!(started.elapsed() < TIMEOUT, "the capacity is {}", cluster.kubectl(&capacity));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.claim("large", "late", "9Gi");
    cluster.pod("waits", "large", None);
    let message = ".status.conditions[?(@.type=='PodScheduled')].message";
    cluster.until_is("pod/waits", message, |text| text.contains("did not have enough free storage"), "no room").await;
    cluster.kubectl(&["delete", "pod", "web", "waits", "--grace-period=0", "--force"]);
    cluster.kubectl(&["delete", "pvc", "data", "large"]);
    cluster.until_gone(&volume).await;
    cluster.until_volumes(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_controller_neither_loses_nor_leaks_volumes() {
    let mut cluster = Cluster::start(1, true).await;
    // Killed after CreateVolume: the same volume is found again.
    cluster.driver.hang_after(Some("CreateVolume"));
    cluster.claim("kept", "now", "1Gi");
    cluster.driver.until_hung(1).await;
    cluster.kill_controller().await;
    cluster.driver.hang_after(None);
    assert_eq!(cluster.driver.volumes().len(), 1);
    cluster.start_controller();
    cluster.until("pvc/kept", ".status.phase", "Bound").await;
    assert_eq!(cluster.driver.volumes().len(), 1, "the same volume");

    // Killed after CreateVolume, and the claim is deleted meanwhile: so is the volume.
    cluster.driver.hang_after(Some("CreateVolume"));
    cluster.claim("dropped", "now", "1Gi");
    cluster.driver.until_hung(2).await;
    cluster.kill_controller().await;
    cluster.driver.hang_after(None);
    cluster.kubectl(&["delete", "pvc", "dropped", "--wait=false"]);
    cluster.until_is("pvc/dropped", ".metadata.deletionTimestamp", |time| !time.is_empty(), "a time").await;
    assert_eq!(cluster.driver.volumes().len(), 2);
    cluster.start_controller();
    cluster.until_gone("pvc/dropped").await;
    cluster.until_volumes(1).await;

    // Killed while it expands: continued.
    cluster.driver.hang_after(Some("ControllerExpandVolume"));
    let larger = r#"{"spec":{"resources":{"requests":{"storage":"3Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "kept", "-p", larger]);
    cluster.driver.until_hung(3).await;
    cluster.until("pvc/kept", ".status.allocatedResourceStatuses.storage", "ControllerResizeInProgress").await;
    cluster.kill_controller().await;
    cluster.driver.hang_after(None);
    cluster.start_controller();
    cluster.until("pvc/kept", ".status.capacity.storage", "3Gi").await;
    cluster.until("pvc/kept", ".status.allocatedResourceStatuses.storage", "").await;

    // A size that the driver refuses can be reduced again.
    let huge = r#"{"spec":{"resources":{"requests":{"storage":"30Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "kept", "-p", huge]);
    cluster.until("pvc/kept", ".status.allocatedResourceStatuses.storage", "ControllerResizeInfeasible").await;
    cluster.until_event("kept", "VolumeResizeFailed", "larger than the disk").await;
    let smaller = r#"{"spec":{"resources":{"requests":{"storage":"4Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "kept", "-p", smaller]);
    cluster.until("pvc/kept", ".status.capacity.storage", "4Gi").await;

    // Killed while it deletes: continued.
    cluster.driver.hang_after(Some("DeleteVolume"));
    let volume = format!("pv/{}", cluster.kubectl(&["get", "pvc", "kept", "-o", "jsonpath={.spec.volumeName}"]));
    cluster.kubectl(&["delete", "pvc", "kept"]);
    cluster.driver.until_hung(4).await;
    cluster.kill_controller().await;
    cluster.driver.hang_after(None);
    assert!(cluster.plane.kubectl(&["get", &volume]).is_ok(), "the PersistentVolume outlives the volume");
    cluster.start_controller();
    cluster.until_gone(&volume).await;
    cluster.until_volumes(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_taken_restored_and_deleted() {
    let mut cluster = Cluster::start(2, true).await;
    cluster.claim("data", "now", "1Gi");
    cluster.until("pvc/data", ".status.phase", "Bound").await;
    cluster.driver.hang_after(Some("CreateSnapshot"));
    cluster.apply_json(&json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "before"},
        "spec": {"volumeSnapshotClassName": "snap", "source": {"persistentVolumeClaimName": "data"}},
    }));
    // Killed after CreateSnapshot: the same snapshot is found again.
    cluster.driver.until_hung(1).await;
    cluster.kill_controller().await;
    cluster.driver.hang_after(None);
    cluster.start_controller();
    cluster.until("volumesnapshot/before", ".status.readyToUse", "true").await;
    cluster.until("volumesnapshot/before", ".status.restoreSize", "1Gi").await;
    assert_eq!(cluster.driver.state.lock().snapshots.len(), 1);

    // A claim with the snapshot as source goes to the node that has it.
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "before"});
    cluster.claim_with("restored", "late", "1Gi", &source);
    cluster.pod("reader", "restored", None);
    cluster.until("pvc/restored", ".status.phase", "Bound").await;
    cluster.until("pod/reader", ".spec.nodeName", NODE).await;
    let restored = cluster.driver.state.lock().volumes.values().filter(|own| own.content_source.is_some()).count();
    assert_eq!(restored, 1);
    let too_small =
        cluster.kubectl(&["get", "volumesnapshotcontents", "-o", "jsonpath={.items[*].status.restoreSize}"]);
    assert_eq!(too_small, (1_i64 << 30).to_string());

    // A content created by hand, which a stranger names too and whose snapshot has no class.
    let handle = cluster.driver.state.lock().snapshots.values().next().expect("a snapshot").snapshot_id.clone();
    cluster.apply_json(&json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": "by-hand"},
        "spec": {"deletionPolicy": "Delete", "driver": cluster.driver.name, "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"namespace": "default", "name": "owner"}},
    }));
    for name in ["owner", "stranger"] {
        cluster.apply_json(&json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
            "spec": {"source": {"volumeSnapshotContentName": "by-hand"}},
        }));
    }
    cluster.until("volumesnapshot/owner", ".status.readyToUse", "true").await;
    cluster.kubectl(&["delete", "volumesnapshot", "stranger"]);
    cluster.until("volumesnapshotcontent/by-hand", ".metadata.deletionTimestamp", "").await;
    assert_eq!(cluster.driver.state.lock().snapshots.len(), 1, "it is not the stranger's");
    cluster.kubectl(&[
        "patch",
        "volumesnapshotcontent",
        "by-hand",
        "--type=merge",
        "-p",
        r#"{"spec":{"deletionPolicy":"Retain"}}"#,
    ]);
    cluster.kubectl(&["delete", "volumesnapshotcontent", "by-hand", "--wait=false"]);
    cluster.kubectl(&["delete", "volumesnapshot", "owner", "--wait=false"]);
    cluster.until_gone("volumesnapshotcontent/by-hand").await;
    cluster.until_gone("volumesnapshot/owner").await;
    assert_eq!(cluster.driver.state.lock().snapshots.len(), 1, "retained");

    // Killed after DeleteSnapshot: the objects go nevertheless.
    cluster.driver.hang_after(Some("DeleteSnapshot"));
    cluster.kubectl(&["delete", "volumesnapshot", "before", "--wait=false"]);
    cluster.driver.until_hung(2).await;
    cluster.kill_controller().await;
    cluster.driver.hang_after(None);
    cluster.start_controller();
    cluster.until_gone("volumesnapshot/before").await;
    assert_eq!(cluster.kubectl(&["get", "volumesnapshotcontents", "-o", "name"]), "");
    assert!(cluster.driver.state.lock().snapshots.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_waits_until_its_claim_has_a_volume() {
    let cluster = Cluster::start(1, true).await;
    cluster.apply_json(&json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "early"},
        "spec": {"volumeSnapshotClassName": "snap", "source": {"persistentVolumeClaimName": "data"}},
    }));
    cluster.claim("data", "late", "1Gi");
    cluster
        .until_event("data", "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
        .await;
    cluster.until("volumesnapshot/early", ".metadata.finalizers", "").await;
    cluster.pod("web", "data", None);
    cluster.until("volumesnapshot/early", ".status.readyToUse", "true").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_attached_although_controllers_are_killed() {
    let mut cluster = Cluster::start(2, false).await;
    cluster.claim("data", "now", "1Gi");
    cluster.until("pvc/data", ".status.phase", "Bound").await;
    cluster.driver.hang_after(Some("ControllerPublishVolume"));
    cluster.pod("first", "data", Some("hollow-0"));
    // Controller manager and CSI controller are killed while the driver attaches, and only the latter comes back.
    cluster.driver.until_hung(1).await;
    cluster.kill_controller().await;
    cluster.plane.kill("controller-manager");
    cluster.driver.hang_after(None);
    cluster.start_controller();
    cluster.until("volumeattachments", ".items[*].status.attached", "true").await;
    cluster.plane.revive(&["controller-manager"]);
    let attached = ".status.volumesAttached[*].name";
    let name = "kubernetes.io/csi/fake.example.com^id-pvc-";
    cluster.until_is("node/hollow-0", attached, |names| names.starts_with(name), name).await;
    assert_eq!(cluster.driver.state.lock().attached.len(), 1);
    cluster.until_event("first", "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume").await;

    // The same while the driver detaches: the volume is not attached to two nodes, and moves.
    cluster.driver.hang_after(Some("ControllerUnpublishVolume"));
    cluster.kubectl(&["delete", "pod", "first", "--grace-period=0", "--force"]);
    cluster.pod("second", "data", Some("hollow-1"));
    cluster.driver.until_hung(2).await;
    cluster.kill_controller().await;
    cluster.plane.restart("controller-manager");
    cluster.driver.hang_after(None);
    cluster.start_controller();
    cluster.until_is("node/hollow-1", attached, |names| names.starts_with(name), name).await;
    let volumes = cluster.driver.state.lock().attached.clone();
    assert_eq!(volumes.iter().map(|(_, node)| node.as_str()).collect::<Vec<_>>(), ["id-hollow-1"]);
    cluster.until("volumeattachments", ".items[*].spec.nodeName", "hollow-1").await;
}
