//! Disks on a host whose tools fail at each call.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};
use serde_json::{Value, json};

use super::fake_host::{FakeHost, PASSWORD, TARGET};
use super::*;

fn inline(source: Value) -> DiskSource {
    let mut volume = source;
    volume["name"] = json!("data");
    let volume: Volume = serde_json::from_value(volume).expect("a volume");
    DiskSource::inline(&volume).expect("complete").expect("a disk")
}

fn persistent(spec: Value) -> DiskSource {
    let volume = json!({ "metadata": { "name": "pv" }, "spec": spec });
    let volume: PersistentVolume = serde_json::from_value(volume).expect("a volume");
    DiskSource::persistent(&volume, false).expect("complete").expect("a disk")
}

/// Uses everything: two portals, both kinds of CHAP, an initiator of its own.
fn two_portals() -> DiskSource {
    persistent(json!({ "mountOptions": ["noatime"], "iscsi": {
        "targetPortal": "10.0.0.1", "portals": ["10.0.0.2:3260", "10.0.0.1:3260"], "iqn": TARGET, "lun": 0,
        "fsType": "xfs", "initiatorName": "iqn.1994-05.com.example:me", "chapAuthDiscovery": true,
        "chapAuthSession": true, "secretRef": { "name": "s", "namespace": "x" } } }))
}

fn one_portal(unit: i32) -> DiskSource {
    inline(json!({ "iscsi": { "targetPortal": "10.0.0.1:3260", "iqn": TARGET, "lun": unit } }))
}

#[tokio::test(start_paused = true)]
async fn an_iscsi_disk_is_attached_mounted_and_detached() {
    let host = FakeHost::new();
    let source = two_portals();
    assert_eq!(source.secret, Some(SecretName { namespace: Some("x".into()), name: "s".into() }));
    let path = host.mount("a", &source).await.expect("mounted");
    assert!(path.ends_with("pods/a/volumes/kubernetes.io~iscsi/pv"), "{}", path.display());
    let calls = host.calls();
    // The device that joins both paths is mounted, not one of them.
    assert!(calls.contains(&"mount /dev/dm-0 xfs rw noatime".to_string()), "{calls:#?}");
    let login = format!("iscsiadm -m node -p 10.0.0.2:3260 -T {TARGET} -I 10.0.0.1:3260:pv --login");
    assert!(calls.contains(&login), "{calls:#?}");
    let clone = "iscsiadm -m iface -I 10.0.0.1:3260:pv -o update -n iface.initiatorname -v iqn.1994-05.com.example:me";
    assert!(calls.contains(&clone.to_string()), "{calls:#?}");
    assert_eq!(std::fs::read_to_string(host.path("/sys/class/scsi_host/host1/scan")).expect("scanned"), "0 0 0");

    host.mount("a", &source).await.expect("mounted already");
    assert_eq!(host.calls(), Vec::<String>::new(), "a mounted volume needs nothing");
    host.mount("b", &source).await.expect("mounted");
    assert_eq!(host.calls(), ["bind"], "a second pod shares the disk");
    let in_use = format!("kubernetes.io/iscsi/10.0.0.1:{TARGET}:0");
    assert_eq!(recorded(&host.settings), BTreeSet::from([in_use.clone()]));

    host.unmount("a").await.expect("unmounted");
    assert_eq!(host.calls(), ["unbind"], "the other pod keeps the disk");
    assert_eq!(recorded(&host.settings), BTreeSet::from([in_use]), "also after a restart");
    host.unmount("b").await.expect("unmounted");
    let calls = host.calls();
    let position = |text: &str| calls.iter().position(|call| call.starts_with(text)).expect(text);
    let order = ["unbind", "sync -f", "umount", "multipath -f /dev/dm-0", "blockdev", "iscsiadm"].map(position);
    assert!(order.is_sorted(), "{calls:#?}");
    assert_eq!(calls.last().expect("calls"), "iscsiadm -m iface -I 10.0.0.1:3260:pv -o delete");
    for device in ["sd10", "sd20"] {
        let file = host.path(&format!("/sys/block/{device}/device/delete"));
        assert_eq!(std::fs::read_to_string(file).expect("there"), "1", "{device}");
    }
    host.assert_clean("the last pod is gone");
}

#[tokio::test(start_paused = true)]
async fn whichever_call_fails_a_retry_succeeds_and_nothing_is_left() {
    let host = FakeHost::new();
    host.mount("a", &two_portals()).await.expect("mounted");
    let mounting = host.state.lock().calls.len();
    host.unmount("a").await.expect("unmounted");
    let all = host.state.lock().calls.len();
    assert!(mounting > 20 && all > mounting + 10, "{mounting} {all}");
    for call in 0..all {
        let host = FakeHost::failing_at(call);
        let mut errors = Vec::new();
        if let Err(error) = host.mount("a", &two_portals()).await {
            errors.push(error.to_string());
            host.mount("a", &two_portals()).await.expect("the second time all calls succeed");
        }
        while let Err(error) = host.unmount("a").await {
            errors.push(error.to_string());
            assert!(errors.len() < 3, "{errors:?}");
        }
        host.assert_clean(&format!("call {call}, {errors:?}"));
        assert_eq!(recorded(&host.settings), BTreeSet::new());
        assert!(host.state.lock().calls.len() > call, "the call was reached");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_never_got_its_disk_leaves_nothing() {
    let mounted = FakeHost::new();
    mounted.mount("a", &two_portals()).await.expect("mounted");
    let mounting = mounted.state.lock().calls.len();
    for call in 0..mounting {
        let host = FakeHost::failing_at(call);
        let _ = host.mount("a", &two_portals()).await;
        host.state.lock().fail_at = None;
        host.unmount("a").await.expect("unmounted");
        host.assert_clean(&format!("call {call}"));
    }
}

#[tokio::test(start_paused = true)]
async fn passwords_are_in_no_error_and_no_file() {
    let source = DiskSource { chap: two_portals().chap, ..one_portal(0) };
    let host = FakeHost::new();
    host.mount("a", &source).await.expect("mounted");
    let calls = host.calls();
    let secret: Vec<usize> = (0..calls.len()).filter(|call| calls[*call].contains(PASSWORD)).collect();
    assert_eq!(secret.len(), 2, "one for the discovery and one for the session");
    for call in secret {
        let host = FakeHost::failing_at(call);
        let error = host.mount("a", &source).await.expect_err("refused").to_string();
        assert!(error.contains("auth.password") && !error.contains(PASSWORD), "{error}");
    }
    let [record] = &Record::all(&host.settings, "iscsi").expect("readable")[..] else { panic!("one record") };
    let text = serde_json::to_string(&record.disk).expect("text");
    assert!(text.contains(TARGET) && !text.contains(PASSWORD), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_portal_that_fails_once_is_tried_again() {
    let host = FakeHost::new();
    host.mount("a", &two_portals()).await.expect("mounted");
    let login = host.calls().iter().position(|call| call.contains("--login")).expect("a login");
    let host = FakeHost::failing_at(login);
    host.mount("a", &two_portals()).await.expect("mounted");
    assert_eq!(host.sessions(), 2);
}

#[tokio::test(start_paused = true)]
async fn units_of_one_target_share_its_session() {
    let host = FakeHost::new();
    host.mount("a", &one_portal(0)).await.expect("mounted");
    host.calls();
    host.mount("b", &one_portal(1)).await.expect("mounted");
    let logins = host.calls().into_iter().filter(|call| call.contains("--login")).count();
    assert_eq!(logins, 0, "there is a session");
    host.unmount("a").await.expect("unmounted");
    assert_eq!(host.sessions(), 1, "the other disk needs it");
    host.unmount("b").await.expect("unmounted");
    host.assert_clean("both are gone");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_the_tools_says_so() {
    let host = FakeHost::new();
    host.state.lock().missing = Some("iscsiadm");
    let error = host.mount("a", &one_portal(0)).await.expect_err("no tool").to_string();
    assert_eq!(error, "exec: \"iscsiadm\": executable file not found in $PATH: iscsiadm is needed for this volume");
    host.unmount("a").await.expect("there is nothing to detach");
    host.assert_clean("the pod is gone");
    let fc = inline(json!({ "fc": { "targetWWNs": ["50060e801049cfd1"], "lun": 2 } }));
    let error = host.mount("a", &fc).await.expect_err("no adapter").to_string();
    assert_eq!(error, "no fc disk found: this node has no Fibre Channel adapter");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_does_not_appear_times_out() {
    let host = FakeHost::new();
    let error = host.mount("a", &one_portal(7)).await.expect_err("there are two units only").to_string();
    let expected = format!(
        "Timed out waiting for device at path /dev/disk/by-path/ip-10.0.0.1:3260-iscsi-{TARGET}-lun-7 after 30s"
    );
    assert_eq!(error, expected);
    host.unmount("a").await.expect("unmounted");
    host.assert_clean("the pod is gone");
}

#[tokio::test(start_paused = true)]
async fn raw_devices_are_not_mounted() {
    let host = FakeHost::new();
    let source = persistent(json!({ "volumeMode": "Block", "iscsi": {
        "targetPortal": "10.0.0.1:3260", "iqn": TARGET, "lun": 1 } }));
    for _ in 0..2 {
        assert_eq!(host.mount("a", &source).await.expect("attached"), Path::new("/dev/sd11"));
    }
    assert!(host.state.lock().mounts.is_empty());
    host.unmount("a").await.expect("detached");
    host.assert_clean("the pod is gone");
}

#[tokio::test(start_paused = true)]
async fn a_fibre_channel_disk_is_found_and_removed() {
    for (source, directory, links) in [
        (
            json!({ "fc": { "targetWWNs": ["50060e801049cfd1", "50060e801049cfd2"], "lun": 0 } }),
            "by-path",
            ["pci-0000:41:00.0-fc-0x50060e801049cfd1-lun-0", "fc-0x50060e801049cfd2-lun-0"],
        ),
        (
            json!({ "fc": { "wwids": ["3600508b 1", "3600508b 2"], "readOnly": true } }),
            "by-id",
            ["scsi-3600508b_1", "scsi-3600508b_2"],
        ),
    ] {
        let host = FakeHost::new();
        host.put("/sys/class/scsi_host/host3/scan", "");
        let source = inline(source);
        host.mount("a", &source).await.expect_err("there is no disk yet");
        let scan = std::fs::read_to_string(host.path("/sys/class/scsi_host/host3/scan")).expect("there");
        assert_eq!(scan, "- - -");
        host.link(directory, links[0], "sda");
        host.link(directory, links[1], "sdb");
        // Logical volumes on a disk do not make it a path.
        host.put("/sys/block/dm-1/dm/uuid", "LVM-1");
        host.put("/sys/block/dm-1/slaves/sda", "");
        host.join_paths("dm-2", &["sda", "sdb"]);
        host.calls();
        host.mount("a", &source).await.expect("mounted");
        let how = if source.read_only() { "ro" } else { "rw" };
        assert_eq!(host.calls(), [format!("mount /dev/dm-2 ext4 {how} "), "bind".to_string()]);
        host.unmount("a").await.expect("unmounted");
        let calls = host.calls();
        assert!(calls.contains(&"multipath -f /dev/dm-2".to_string()), "{calls:?}");
        for device in ["sda", "sdb"] {
            assert!(calls.contains(&format!("blockdev --flushbufs /dev/{device}")), "{calls:?}");
            let deleted = std::fs::read_to_string(host.path(&format!("/sys/block/{device}/device/delete")));
            assert_eq!(deleted.expect("there"), "1");
        }
        host.assert_clean("the pod is gone");
    }
}
