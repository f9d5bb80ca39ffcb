//! Secrets and service account tokens go to the driver only.

use knarr_csi::Code;
use parking_lot::Mutex;

use super::*;
use crate::csi::fake_driver::Behaviour;

/// Collects everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn secrets_and_tokens_reach_the_driver_and_no_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // Another test, without a subscriber, may be the first to reach a log line, which is then remembered as disabled.
    tracing::callsite::rebuild_interest_cache();
    let rig = Rig::new().await;
    rig.api.set_driver(json!({ "attachRequired": false, "fsGroupPolicy": "File", "podInfoOnMount": true,
        "volumeLifecycleModes": ["Persistent"], "tokenRequests": [{ "audience": "vault" }] }));
    // "hunter2", as it is in the API.
    let secret = json!({ "metadata": { "name": "s" }, "data": { "password": "aHVudGVyMg==" } });
    rig.api.put("/api/v1/namespaces/x/secrets/s", secret);
    let reference = json!({ "name": "s", "namespace": "x" });
    let secret = volume_with(json!({ "spec": { "csi": {
        "nodeStageSecretRef": reference, "nodePublishSecretRef": reference } } }));
    let error = rig.mount("a", &secret).await.expect_err("the API gives no token");
    assert!(error.text.contains("service accoount token attributes"), "{error}");
    rig.csi.tokens.put_for_test("a", "vault", 3600, "hunter2-token");
    rig.driver.will("NodePublishVolume", Behaviour::Fail(Code::Internal));
    rig.mount("a", &secret).await.expect_err("refused");
    rig.mount("a", &secret).await.expect("mounted");
    {
        let account = rig.driver.fake.account.lock();
        assert_eq!(account.stages[0].secrets[0].value, "hunter2");
        assert_eq!(account.publishes[0].secrets[0].value, "hunter2");
        let context = &account.publishes[0].volume_context;
        let tokens: Value = serde_json::from_str(&context["csi.storage.k8s.io/serviceAccount.tokens"]).expect("JSON");
        assert_eq!(tokens["vault"]["token"], "hunter2-token");
        assert_eq!(context["csi.storage.k8s.io/pod.name"], "p");
        assert_eq!(context["csi.storage.k8s.io/serviceAccount.name"], "account");
    }
    for record in rig.files() {
        let text = std::fs::read_to_string(&record).expect("read");
        assert!(!text.contains("hunter2"), "{}: {text}", record.display());
    }
    rig.unmount_everything("a").await;
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(logged.contains("published"), "something is logged");
    assert!(!logged.contains("hunter2"), "{logged}");
    assert!(!logged.contains("aHVudGVyMg"), "{logged}");
}
