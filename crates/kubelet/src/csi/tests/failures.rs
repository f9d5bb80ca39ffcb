//! Calls that fail, hang or are lost, and kills between two steps: nothing is left behind.

use knarr_csi::Code;

use super::*;
use crate::csi::fake_driver::Behaviour;
use crate::csi::state::Progress;

/// The driver fails a call of mounting; then the pod is deleted, or the call is repeated.
async fn mount_fails(method: &'static str, behaviour: Behaviour) {
    let rig = Rig::new().await;
    rig.driver.will(method, behaviour.clone());
    rig.mount("a", &volume()).await.expect_err("the driver fails");
    rig.unmount_everything("a").await;
    rig.assert_clean();
    rig.driver.will(method, behaviour.clone());
    rig.mount("a", &volume()).await.expect_err("the driver fails");
    rig.mount("a", &volume()).await.expect("mounted now");
    assert_eq!(rig.driver.leaks().len(), 2, "{method} {behaviour:?}: staged and published once");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

/// The driver fails a call of unmounting twice.
async fn unmount_fails(method: &'static str, behaviour: Behaviour) {
    let rig = Rig::new().await;
    rig.mount("a", &volume()).await.expect("mounted");
    rig.driver.will(method, behaviour.clone());
    rig.driver.will(method, behaviour.clone());
    rig.unmount_everything("a").await;
    let calls = rig.driver.take_calls().iter().filter(|call| *call == method).count();
    assert_eq!(calls, 3, "{method} {behaviour:?}: repeated until it succeeds");
    rig.assert_clean();
}

#[tokio::test]
async fn whatever_happens_to_a_call_nothing_is_left_behind() {
    let failures = [
        Behaviour::Fail(Code::Internal),
        Behaviour::Fail(Code::Aborted),
        Behaviour::DoAndFail(Code::Unavailable),
        Behaviour::DoAndFail(Code::DeadlineExceeded),
        Behaviour::Hang,
        Behaviour::DoAndHang,
    ];
    let cases = |methods: [&'static str; 2]| {
        methods.into_iter().flat_map(|method| failures.clone().map(|behaviour| (method, behaviour)))
    };
    let mounts = cases(["NodeStageVolume", "NodePublishVolume"]).map(|(method, with)| mount_fails(method, with));
    futures::future::join_all(mounts).await;
    let unmounts =
        cases(["NodeUnpublishVolume", "NodeUnstageVolume"]).map(|(method, with)| unmount_fails(method, with));
    futures::future::join_all(unmounts).await;
}

#[tokio::test]
async fn an_outcome_that_is_unknown_is_undone() {
    let rig = Rig::new().await;
    rig.driver.will("NodeStageVolume", Behaviour::DoAndHang);
    let error = rig.mount("a", &volume()).await.expect_err("no response");
    assert_eq!(
        error.event_message(),
        "MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = DeadlineExceeded desc = context deadline \
         exceeded"
    );
    assert_eq!(rig.csi.state.get(&volume().id).map(|known| known.staged), Some(Progress::Uncertain));
    rig.unmount_everything("a").await;
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume", "NodeUnstageVolume"]);
    // A refusal that is certain needs no cleanup by the driver.
    rig.driver.will("NodeStageVolume", Behaviour::Fail(Code::InvalidArgument));
    rig.mount("a", &volume()).await.expect_err("refused");
    rig.unmount_everything("a").await;
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume"]);
    rig.assert_clean();
}

#[tokio::test]
async fn a_driver_that_is_killed_during_a_call_is_asked_again() {
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        let mut rig = Rig::new().await;
        rig.driver.will(method, Behaviour::DoAndHang);
        let wanted = volume();
        let (mounted, ()) = tokio::join!(rig.mount("a", &wanted), async {
            rig.driver.wait_for_call(method).await;
            rig.driver.kill();
        });
        mounted.expect_err("the connection broke");
        let staged = rig.csi.state.get(&volume().id).map(|known| (known.staged, known.users["a"]));
        let expected = match method {
            "NodeStageVolume" => (Progress::Uncertain, Progress::Not),
            _ => (Progress::Done, Progress::Uncertain),
        };
        assert_eq!(staged, Some(expected), "{method}");
        rig.mount("a", &volume()).await.expect_err("the driver is down");
        rig.driver.restart();
        let work = async { while rig.mount("a", &volume()).await.is_err() {} };
        tokio::time::timeout(Duration::from_secs(10), work).await.expect("mounted");
        rig.unmount_everything("a").await;
        rig.assert_clean();
    }
}

#[tokio::test]
async fn late_responses_count_and_operations_do_not_overlap() {
    let rig = Rig::new().await;
    rig.driver.will("NodeStageVolume", Behaviour::Late(CALL_TIMEOUT / 4));
    let (wanted, other) = (volume(), volume());
    let (first, second) = tokio::join!(rig.mount("a", &wanted), rig.mount("b", &other));
    first.expect("mounted");
    second.expect("mounted");
    let calls = rig.driver.take_calls();
    assert_eq!(calls.iter().filter(|call| *call == "NodeStageVolume").count(), 1, "{calls:?}");
    let (unmounted, mounted) = tokio::join!(rig.unmount("a"), rig.mount("c", &wanted));
    unmounted.expect("unmounted");
    mounted.expect("mounted");
    for uid in ["b", "c"] {
        rig.unmount_everything(uid).await;
    }
    rig.assert_clean();
}

#[tokio::test]
async fn after_a_restart_volumes_of_pods_that_are_gone_are_removed() {
    let mut rig = Rig::new().await;
    rig.mount("stays", &volume()).await.expect("mounted");
    rig.mount("gone", &volume()).await.expect("mounted");
    rig.mount("u", &inline()).await.expect("mounted");
    rig.restart().await;
    let known = rig.csi.state.get(&volume().id).expect("reconstructed");
    assert_eq!((known.staged, known.users.len()), (Progress::Uncertain, 2));
    assert_eq!(known.spec_name, "pv");
    rig.unmount_everything("gone").await;
    rig.unmount_everything("u").await;
    assert_eq!(rig.driver.take_calls(), ["NodeUnpublishVolume", "NodeUnpublishVolume"], "others stay");
    // The pod that stays gets its volume again, although a driver refuses what is already done.
    rig.driver.will("NodeStageVolume", Behaviour::Fail(Code::Internal));
    rig.mount("stays", &volume()).await.expect_err("refused");
    assert!(rig.csi.paths.publish("stays", "pv").is_dir(), "the containers keep it");
    rig.mount("stays", &volume()).await.expect("mounted");
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume", "NodeStageVolume", "NodePublishVolume"]);
    rig.restart().await;
    rig.unmount_everything("stays").await;
    rig.assert_clean();
}

async fn killed_at(method: &'static str, behaviour: Behaviour) {
    let mut rig = Rig::new().await;
    rig.driver.will(method, behaviour);
    // Whether these fail depends on the step.
    let _ = rig.mount("a", &volume()).await;
    let _ = rig.unmount("a").await;
    let _ = rig.csi.unstage_if_unused(&volume().id).await;
    rig.restart().await;
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn a_kill_between_two_steps_leaves_nothing_behind() {
    let cases = [
        ("NodeStageVolume", Behaviour::DoAndHang),
        ("NodePublishVolume", Behaviour::DoAndHang),
        ("NodePublishVolume", Behaviour::Fail(Code::Internal)),
        ("NodeUnpublishVolume", Behaviour::DoAndHang),
        ("NodeUnpublishVolume", Behaviour::Hang),
        ("NodeUnstageVolume", Behaviour::DoAndHang),
        ("NodeUnstageVolume", Behaviour::Hang),
    ];
    futures::future::join_all(cases.map(|(method, behaviour)| killed_at(method, behaviour))).await;
}
