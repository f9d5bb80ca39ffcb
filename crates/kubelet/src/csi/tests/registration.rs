//! Drivers that come, go, restart or collide.

use super::*;
use crate::csi::fake_driver::Behaviour;

#[tokio::test]
async fn drivers_register_when_their_socket_appears_and_leave_when_it_vanishes() {
    let directory = tempfile::tempdir().expect("a directory");
    let api = Arc::new(FakeApi::default());
    api.put("/api/v1/nodes/n", json!({ "metadata": { "name": "n", "uid": "node-uid" } }));
    let csi = start(directory.path(), &api);
    let registry = directory.path().join("data/plugins_registry");
    std::fs::create_dir_all(&registry).expect("made");
    let early = FakeDriver::start(&registry.join("early-reg.sock"), "early.example.com");
    let watching = tokio::spawn(csi.clone().watch_plugins());
    let until = |name: &'static str, present: bool| {
        let csi = csi.clone();
        async move {
            let wait = async {
                while csi.drivers.get(name).is_some() != present {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), wait).await.expect(name);
        }
    };
    until("early.example.com", true).await;
    let mut late = FakeDriver::start(&registry.join("late-reg.sock"), "late.example.com");
    until("late.example.com", true).await;
    let wait = async {
        while late.fake.account.lock().registrations.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the outcome is sent");
    assert!(late.fake.account.lock().registrations[0].plugin_registered);
    let node = api.objects.lock()["/api/v1/nodes/n"].clone();
    assert_eq!(node["metadata"]["labels"]["fake/node"], "here");
    let ids: Value = serde_json::from_str(
        node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].as_str().expect("an annotation"),
    )
    .expect("JSON");
    assert_eq!(ids, json!({ "early.example.com": "fake-node", "late.example.com": "fake-node" }));
    let drivers = || api.objects.lock()["/apis/storage.k8s.io/v1/csinodes/n"]["spec"]["drivers"].clone();
    assert_eq!(drivers().as_array().map(Vec::len), Some(2));
    assert_eq!(drivers()[0]["allocatable"]["count"], 7);
    assert_eq!(drivers()[0]["topologyKeys"], json!(["fake/node"]));
    // A registrar that restarts leaves a new socket at the same path.
    late.restart();
    let wait = async {
        while late.fake.account.lock().registrations.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("it registers again");
    std::fs::remove_file(&early.socket).expect("removed");
    until("early.example.com", false).await;
    let wait = async {
        while drivers().as_array().map(Vec::len) != Some(1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the CSINode is updated");
    assert_eq!(drivers()[0]["name"], "late.example.com");
    watching.abort();
}

#[tokio::test]
async fn a_limit_that_changes_is_asked_for_again() {
    let rig = Rig::new().await;
    let limit = || {
        let node = rig.api.objects.lock()["/apis/storage.k8s.io/v1/csinodes/n"].clone();
        node["spec"]["drivers"][0]["allocatable"]["count"].as_i64()
    };
    let keeping = tokio::spawn(rig.csi.clone().keep_limits());
    assert_eq!(limit(), Some(7));
    rig.driver.fake.account.lock().limit = Some(9);
    rig.api.set_driver(json!({ "attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": 1 }));
    rig.csi.driver_objects_changed();
    let wait = async {
        while limit() != Some(9) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the CSINode is updated");
    let writes = rig.api.requests.lock().len();
    rig.driver.take_calls();
    rig.driver.wait_for_call("NodeGetInfo").await;
    assert_eq!(rig.api.requests.lock().len(), writes, "the same limit is not written again");
    keeping.abort();
}

#[tokio::test]
async fn a_driver_of_the_same_name_or_of_another_protocol_is_refused() {
    let rig = Rig::new().await;
    let other = FakeDriver::start(&rig.directory.path().join("other.sock"), DRIVER);
    let error = rig.csi.register(&other.socket).await.expect_err("the name is taken");
    assert!(error.contains("Another driver with the same name is already registered"), "{error}");
    let outcomes = other.fake.account.lock().registrations.clone();
    assert!(outcomes.len() == 1 && !outcomes[0].plugin_registered && outcomes[0].error == error);
    other.will("NodeGetInfo", Behaviour::Hang);
    rig.csi.unregister(DRIVER).await;
    let error = rig.csi.register(&other.socket).await.expect_err("it hangs");
    assert!(error.contains("DeadlineExceeded"), "{error}");
    assert!(rig.csi.drivers.get(DRIVER).is_none());
}
