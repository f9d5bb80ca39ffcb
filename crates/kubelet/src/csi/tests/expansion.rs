//! Volumes that grow while pods use them.

use knarr_csi::Code;

use super::*;
use crate::csi::fake_driver::Behaviour;

fn claim(status: Value) -> Value {
    let mut claim = json!({ "metadata": { "name": "c", "namespace": "ns", "resourceVersion": "5" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } } },
        "status": { "capacity": { "storage": "1Gi" } } });
    merge(&mut claim["status"], &status);
    claim
}

#[tokio::test]
async fn a_volume_is_expanded_while_it_is_in_use() {
    let rig = Rig::new().await;
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
    rig.mount_claimed("a", &volume(), Some(&claim(json!({})))).await.expect("mounted");
    let pending = claim(json!({ "allocatedResourceStatuses": { "storage": "NodeResizePending" },
        "conditions": [{ "type": "FileSystemResizePending", "status": "True" }] }));
    let larger = volume_with(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    // The driver fails, hangs, and then succeeds.
    for behaviour in [Behaviour::Fail(Code::Internal), Behaviour::Hang] {
        rig.api.put(path, pending.clone());
        rig.driver.will("NodeExpandVolume", behaviour);
        let mounted = rig.mount_claimed("a", &larger, Some(&pending)).await.expect("it stays mounted");
        assert_eq!(mounted.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["VolumeResizeFailed"]);
        assert_eq!(
            rig.api.objects.lock()[path]["status"]["allocatedResourceStatuses"]["storage"],
            "NodeResizeInProgress"
        );
    }
    rig.api.put(path, pending.clone());
    let mounted = rig.mount_claimed("a", &larger, Some(&pending)).await.expect("expanded");
    let status = rig.api.objects.lock()[path]["status"].clone();
    assert_eq!(status["capacity"]["storage"], "2Gi");
    assert_eq!(status["conditions"], json!([]));
    assert_eq!(status["allocatedResourceStatuses"], json!({}));
    assert_eq!(mounted.notes[0].message, "MountVolume.NodeExpandVolume succeeded for volume \"pv\" n");
    assert!(mounted.notes[1].on_claim);
    {
        let account = rig.driver.fake.account.lock();
        let request = &account.expands[0];
        assert_eq!(request.capacity_range.map(|range| range.required_bytes), Some(2 << 30));
        assert!(request.volume_path.ends_with("/mount") && request.staging_target_path.ends_with("/globalmount"));
    }
    rig.driver.take_calls();
    rig.mount_claimed("a", &larger, Some(&claim(json!({ "capacity": { "storage": "2Gi" } })))).await.expect("mounted");
    assert_eq!(rig.driver.take_calls(), Vec::<String>::new(), "nothing is left to do");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn a_kill_during_an_expansion_does_not_lose_it() {
    let mut rig = Rig::new().await;
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
    let pending = claim(json!({ "allocatedResourceStatuses": { "storage": "NodeResizePending" } }));
    rig.api.put(path, pending.clone());
    rig.mount_claimed("a", &volume(), Some(&claim(json!({})))).await.expect("mounted");
    let larger = volume_with(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    rig.driver.will("NodeExpandVolume", Behaviour::DoAndHang);
    {
        let expanding = rig.mount_claimed("a", &larger, Some(&pending));
        let called = rig.driver.wait_for_call("NodeExpandVolume");
        tokio::select! { _ = expanding => panic!("the driver hangs"), () = called => {} }
    }
    rig.restart().await;
    let left = rig.api.objects.lock()[path].clone();
    rig.mount_claimed("a", &larger, Some(&left)).await.expect("expanded");
    assert_eq!(rig.api.objects.lock()[path]["status"]["capacity"]["storage"], "2Gi");
    assert!(rig.driver.take_calls().contains(&"NodeExpandVolume".to_owned()), "called again");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn an_expansion_that_cannot_succeed_is_given_up() {
    let rig = Rig::new().await;
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
    let pending = claim(json!({ "allocatedResourceStatuses": { "storage": "NodeResizePending" } }));
    rig.api.put(path, pending.clone());
    let larger = volume_with(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    rig.driver.will("NodeExpandVolume", Behaviour::Fail(Code::OutOfRange));
    let error = rig.mount_claimed("a", &larger, Some(&pending)).await.expect_err("containers do not start");
    assert!(error.event_message().starts_with("MountVolume.Setup failed while expanding volume for volume \"pv\""));
    let status = rig.api.objects.lock()[path]["status"].clone();
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible");
    assert_eq!(status["conditions"][0]["type"], "NodeResizeError");
    // The driver cannot do it while the volume is in use: the volume is used nevertheless.
    rig.api.put(path, pending.clone());
    rig.driver.will("NodeExpandVolume", Behaviour::Fail(Code::FailedPrecondition));
    rig.mount_claimed("a", &larger, Some(&pending)).await.expect("mounted");
    rig.driver.take_calls();
    rig.mount_claimed("a", &larger, Some(&pending)).await.expect("mounted");
    assert_eq!(rig.driver.take_calls(), Vec::<String>::new(), "not tried again");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}
