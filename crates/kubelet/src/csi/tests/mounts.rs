//! Which calls a driver gets for the volumes of pods, and what they wait for.

use knarr_csi::Code;
use knarr_csi::messages::{AccessType, NodeCapability, VolumeCondition};

use super::*;
use crate::csi::fake_driver::Behaviour;

/// As administrators do to share one volume between namespaces.
#[tokio::test]
async fn two_persistent_volumes_can_be_the_same_volume() {
    let mut rig = Rig::new().await;
    let other = volume_with(json!({ "metadata": { "name": "other" } }));
    for killed in [false, true] {
        let paths =
            [rig.mount("a", &volume()).await, rig.mount("b", &other).await].map(|mount| mount.expect("mounted").path);
        assert!(paths[0].ends_with("pv/mount") && paths[1].ends_with("other/mount"), "{paths:?}");
        if killed {
            rig.restart().await;
        }
        rig.unmount("a").await.expect("unmounted");
        rig.unmount_everything("b").await;
        rig.assert_clean();
    }
}

#[tokio::test]
async fn a_volume_is_staged_once_for_two_pods_and_unstaged_with_the_last() {
    let rig = Rig::new().await;
    let first = rig.mount("a", &volume()).await.expect("mounted");
    assert!(first.path.ends_with("pods/a/volumes/kubernetes.io~csi/pv/mount") && first.path.is_dir());
    rig.mount("b", &volume()).await.expect("mounted");
    rig.mount("a", &volume()).await.expect("nothing to do");
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume", "NodePublishVolume", "NodePublishVolume"]);
    let (stage, publish) = {
        let account = rig.driver.fake.account.lock();
        (account.stages[0].clone(), account.publishes[0].clone())
    };
    assert_eq!(stage.staging_target_path, rig.csi.paths.stage(DRIVER, "handle").to_string_lossy());
    assert_eq!(publish.staging_target_path, stage.staging_target_path);
    assert_eq!(publish.volume_context["a"], "b");
    let Some(Some(AccessType::Mount(mount))) = stage.volume_capability.map(|capability| capability.access_type) else {
        panic!("a file system");
    };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".to_string()]));
    rig.unmount("a").await.expect("unmounted");
    rig.csi.unstage_if_unused(&volume().id).await.expect("still used");
    assert_eq!(rig.driver.take_calls(), ["NodeUnpublishVolume"]);
    rig.unmount_everything("b").await;
    assert_eq!(rig.driver.take_calls(), ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    rig.assert_clean();
}

#[tokio::test]
async fn a_missing_driver_is_waited_for() {
    let rig = Rig::new().await;
    rig.mount("a", &volume()).await.expect("mounted");
    rig.csi.unregister(DRIVER).await;
    rig.mount("a", &volume()).await.expect("a mounted volume needs no driver");
    let error = rig.mount("b", &volume()).await.expect_err("no driver");
    let missing = format!("driver name {DRIVER} not found in the list of registered CSI drivers");
    assert_eq!(
        error.event_message(),
        format!(
            "MountVolume.MountDevice failed for volume \"pv\" : kubernetes.io/csi: attacher.MountDevice failed to create \
             newCsiDriverClient: {missing}"
        )
    );
    let error = rig.unmount("a").await.expect_err("no driver");
    assert!(
        error.contains(&missing) && error.starts_with("UnmountVolume.TearDown failed for volume \"pv\""),
        "{error}"
    );
    rig.csi.register(&rig.driver.socket).await.expect("registered");
    tokio::time::timeout(Duration::from_secs(5), rig.notified.notified()).await.expect("the worker is notified");
    rig.mount("b", &volume()).await.expect("mounted");
    rig.unmount_everything("a").await;
    rig.unmount_everything("b").await;
    rig.assert_clean();
}

#[tokio::test]
async fn a_driver_that_can_attach_no_more_is_asked_for_its_limit() {
    let rig = Rig::new().await;
    let attachment = paths::attachment_name("handle", DRIVER, "n");
    let name = volume().id.unique_name();
    for (period, code, exceeded) in [(Some(60), 8, true), (Some(60), 13, false), (None, 8, false)] {
        rig.api.set_driver(json!({ "attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": period }));
        rig.csi.set_reported(std::slice::from_ref(&name));
        rig.api.put(
            &format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}"),
            json!({ "metadata": { "name": attachment }, "spec": { "attacher": DRIVER, "nodeName": "n", "source": {} },
                "status": { "attached": false, "attachError": { "message": "no", "errorCode": code } } }),
        );
        let error = rig.mount("a", &volume()).await.expect_err("not attached");
        assert!(error.waits, "{error}");
        assert_eq!(error.limit_exceeded, exceeded, "{period:?} {code}");
        let asked = rig.driver.take_calls();
        assert_eq!(asked, if exceeded { vec!["NodeGetInfo".to_string()] } else { Vec::new() });
    }
}

#[tokio::test]
async fn an_attachable_volume_waits_for_the_control_plane() {
    let rig = Rig::new().await;
    rig.api
        .set_driver(json!({ "attachRequired": true, "fsGroupPolicy": "File", "volumeLifecycleModes": ["Persistent"] }));
    let name = volume().id.unique_name();
    let error = rig.mount("a", &volume()).await.expect_err("not reported");
    assert!(error.waits && error.text.contains("VolumesInUse"), "{error}");
    assert_eq!(rig.csi.volumes_in_use(), Some(vec![name.clone()]));
    rig.csi.set_reported(std::slice::from_ref(&name));
    tokio::time::timeout(Duration::from_secs(5), rig.notified.notified()).await.expect("notified");
    let error = rig.mount("a", &volume()).await.expect_err("not attached");
    assert!(error.waits && error.text == format!("volume {name} is not yet in node's status"), "{error}");
    rig.api.node.lock()["status"] = json!({ "volumesAttached": [{ "name": name, "devicePath": "" }] });
    rig.csi.node_changed(&rig.api.node().expect("a node"));
    tokio::time::timeout(Duration::from_secs(5), rig.notified.notified()).await.expect("notified");
    let error = rig.mount("a", &volume()).await.expect_err("no attachment");
    assert!(
        error
            .event_message()
            .starts_with("MountVolume.WaitForAttach failed for volume \"pv\" : volume handle has GET error"),
        "{}",
        error.event_message()
    );
    let attachment = paths::attachment_name("handle", DRIVER, "n");
    rig.api.put(
        &format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}"),
        json!({ "metadata": { "name": attachment }, "spec": { "attacher": DRIVER, "nodeName": "n", "source": {} },
            "status": { "attached": true, "attachmentMetadata": { "device": "/dev/x" } } }),
    );
    rig.mount("a", &volume()).await.expect("mounted");
    {
        let account = rig.driver.fake.account.lock();
        assert_eq!(account.stages[0].publish_context["device"], "/dev/x");
        assert_eq!(account.publishes[0].publish_context["device"], "/dev/x");
    }
    rig.unmount("a").await.expect("unmounted");
    assert_eq!(rig.csi.volumes_in_use(), Some(vec![name.clone()]), "it is still staged");
    rig.unmount_everything("a").await;
    assert_eq!(rig.csi.volumes_in_use(), None);
    rig.api.node.lock()["status"]["volumesInUse"] = json!([name]);
    assert_eq!(rig.csi.volumes_in_use(), Some(Vec::new()), "the old list is replaced");
}

#[tokio::test]
async fn only_one_pod_has_a_volume_that_is_for_one_pod() {
    let rig = Rig::new().await;
    let exclusive = volume_with(json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } }));
    rig.mount("a", &exclusive).await.expect("mounted");
    let error = rig.mount("b", &exclusive).await.expect_err("in use");
    let text = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert_eq!(error.event_message(), format!("MountVolume.SetUp failed for volume \"pv\" : {text}"));
    rig.unmount("a").await.expect("unmounted");
    rig.mount("b", &exclusive).await.expect("mounted");
    rig.unmount_everything("b").await;
    rig.assert_clean();
}

#[tokio::test]
async fn a_driver_that_asks_for_it_publishes_again() {
    let rig = Rig::new().await;
    rig.api.set_driver(json!({ "attachRequired": false, "fsGroupPolicy": "File", "requiresRepublish": true,
        "volumeLifecycleModes": ["Ephemeral"] }));
    let mounted = rig.mount("u", &inline()).await.expect("mounted");
    assert!(mounted.again_after.is_some() && mounted.read_only);
    rig.mount("u", &inline()).await.expect("mounted");
    rig.driver.will("NodePublishVolume", Behaviour::Fail(Code::Internal));
    rig.mount("u", &inline()).await.expect_err("refused");
    assert!(mounted.path.is_dir(), "the pod keeps what it has");
    assert_eq!(rig.driver.take_calls(), ["NodePublishVolume"; 3]);
    let error = rig.mount("a", &volume()).await.expect_err("the driver serves inline volumes only");
    assert!(error.text.contains("volume mode \"Persistent\" not supported by driver"), "{error}");
    rig.unmount_everything("u").await;
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn block_devices_are_published_and_linked() {
    let mut rig = Rig::new().await;
    let device = volume_with(json!({ "spec": { "volumeMode": "Block" } }));
    let mounted = rig.mount("a", &device).await.expect("mapped");
    assert_eq!(mounted.path, rig.csi.paths.device_publish("pv", "a"));
    assert_eq!(std::fs::read_link(rig.csi.paths.pod_device("a", "pv")).expect("a link"), mounted.path);
    assert!(crate::mount::is_mount_point(&rig.csi.paths.device_map("pv", "a")));
    assert_eq!(mounted.notes.len(), 2);
    assert!(mounted.notes[0].message.starts_with("MapVolume.MapPodDevice succeeded for volume \"pv\" globalMapPath"));
    rig.driver.will("NodePublishVolume", Behaviour::Fail(Code::Internal));
    let error = rig.mount("b", &device).await.expect_err("refused");
    assert_eq!(error.event_reason(), "FailedMapVolume");
    rig.restart().await;
    rig.unmount_everything("b").await;
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn drivers_without_staging_only_publish() {
    let rig = Rig::new().await;
    *rig.driver.fake.capabilities.lock() = vec![NodeCapability::VolumeMountGroup];
    rig.mount("a", &volume()).await.expect("mounted");
    let device = volume_with(json!({ "spec": { "volumeMode": "Block", "csi": { "volumeHandle": "other" } } }));
    rig.mount("b", &device).await.expect("mapped");
    rig.unmount_everything("a").await;
    rig.unmount_everything("b").await;
    assert_eq!(
        rig.driver.take_calls(),
        ["NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume"]
    );
    rig.assert_clean();
}

#[tokio::test]
async fn usage_comes_from_the_driver() {
    let rig = Rig::new().await;
    let mounted = rig.mount("a", &volume()).await.expect("mounted");
    let stats = rig.csi.stats_of("a").await;
    assert_eq!(stats[&mounted.path].used, 4);
    rig.csi.stats_of("a").await;
    let calls = rig.driver.take_calls();
    assert_eq!(calls.iter().filter(|call| *call == "NodeGetVolumeStats").count(), 1, "the last measurement is used");
    assert!(rig.csi.stats_of("other").await.is_empty());
    rig.unmount_everything("a").await;
}

#[tokio::test]
async fn an_unhealthy_volume_is_reported() {
    let rig = Rig::new().await;
    rig.driver.fake.capabilities.lock().push(NodeCapability::VolumeCondition);
    rig.driver.fake.account.lock().condition = Some(VolumeCondition { abnormal: true, message: "broken".into() });
    assert_eq!(rig.mount("a", &volume()).await.expect("mounted").notes, []);
    let notes = rig.mount("a", &volume()).await.expect("still mounted").notes;
    let found: Vec<_> = notes.iter().map(|note| (note.warning, note.reason, note.message.as_str())).collect();
    assert_eq!(found, [(true, "VolumeConditionAbnormal", "Volume data: broken")]);
    rig.unmount_everything("a").await;
}
