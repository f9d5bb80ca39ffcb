//! Who the components are: each controller acts as its own service account and is refused nothing, and nobody but the
//! administrator is in `system:masters`. The audit log is the witness.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::hollow::HollowNodes;
use crate::support::{ControlPlane, wait_for};

/// Accounts of controllers that write something for the objects below.
const WRITERS: [&str; 26] = [
    "bootstrap-signer",
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemon-set-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoint-controller",
    "endpointslice-controller",
    "endpointslicemirroring-controller",
    "ephemeral-volume-controller",
    "generic-garbage-collector",
    "horizontal-pod-autoscaler",
    "job-controller",
    "namespace-controller",
    "persistent-volume-binder",
    "pv-protection-controller",
    "pvc-protection-controller",
    "replicaset-controller",
    "replication-controller",
    "resource-claim-controller",
    "resourcequota-controller",
    "root-ca-cert-publisher",
    "service-account-controller",
    "service-cidrs-controller",
    "statefulset-controller",
    "volumeattributesclass-protection-controller",
];

/// Those of them that write only when something is deleted.
const AFTER_DELETION: [&str; 5] = [
    "generic-garbage-collector",
    "namespace-controller",
    "pv-protection-controller",
    "pvc-protection-controller",
    "volumeattributesclass-protection-controller",
];

/// The flags of an API server with an audit log of all requests, and the log.
fn audited(plane: &ControlPlane) -> (Vec<String>, PathBuf) {
    let (policy, log) = (plane.data().join("audit.yaml"), plane.data().join("audit.log"));
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
    std::fs::write(&policy, text).expect("a policy");
    let flags = ["--audit-policy-file", &policy.to_string_lossy(), "--audit-log-path", &log.to_string_lossy()];
    (flags.map(str::to_owned).into(), log)
}

fn records(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // The last line may be incomplete.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The users that changed something, by name.
fn writers(log: &Path) -> BTreeSet<String> {
    let changes = |record: &Value| !matches!(record["verb"].as_str(), Some("get" | "list" | "watch"));
    let all = records(log).into_iter().filter(changes);
    all.filter_map(|record| record["user"]["username"].as_str().map(str::to_owned)).collect()
}

fn create_objects(plane: &ControlPlane) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control_plane/objects.yaml");
    plane.kubectl(&["create", "namespace", "work"]).expect("a namespace");
    plane.kubectl(&["apply", "-f", file]).expect("the objects are created");
}

/// Deletes enough for the controllers that clean up.
fn delete_objects(plane: &ControlPlane) {
    plane.kubectl(&["delete", "--wait=false", "deployment/web", "-n", "work"]).expect("it is deleted");
    plane.kubectl(&["delete", "--wait=false", "namespace", "work"]).expect("it is deleted");
    plane
        .kubectl(&["delete", "--wait=false", "persistentvolume/disk", "volumeattributesclass/fast"])
        .expect("they are");
}

fn check(plane: &ControlPlane, log: &Path, expected: &[&str]) {
    let account = |name: &str| format!("system:serviceaccount:kube-system:{name}");
    let missing = |log: &Path| -> Vec<String> {
        let seen = writers(log);
        expected.iter().map(|name| account(name)).filter(|name| !seen.contains(name)).collect()
    };
    let after_deletion = AFTER_DELETION.map(account);
    wait_for("most controllers to write", || missing(log).iter().all(|name| after_deletion.contains(name)));
    delete_objects(plane);
    let mut left = Vec::new();
    wait_for("every controller to write", || {
        left = missing(log);
        if left.is_empty() {
            return true;
        }
        eprintln!("still silent: {left:?}");
        std::thread::sleep(std::time::Duration::from_secs(1));
        false
    });
    wait_for("the namespace to go", || plane.kubectl(&["get", "namespace", "work"]).is_err());
    let mut refused: BTreeMap<String, Value> = BTreeMap::new();
    for record in records(log) {
        let user = record["user"]["username"].as_str().unwrap_or_default();
        let is_component = user.starts_with("system:") && user != "system:anonymous" || user.starts_with("knarr:");
        let reason = record["responseStatus"]["reason"].as_str().unwrap_or_default();
        let message = record["responseStatus"]["message"].as_str().unwrap_or_default();
        // A namespace that is being deleted refuses new objects from everybody.
        if is_component && reason == "Forbidden" && !message.contains("being terminated") {
            refused.insert(
                format!("{user} {} {}", record["verb"], record["requestURI"]),
                record["responseStatus"].clone(),
            );
        }
        let groups: Vec<&str> =
            record["user"]["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let is_master = groups.contains(&"system:masters");
        assert!(!is_master || ["kubernetes-admin", "system:apiserver"].contains(&user), "{record}");
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_of_the_server_have_their_own_identity() {
    let plane = ControlPlane::empty();
    let (flags, log) = audited(&plane);
    let plane = ControlPlane::server_with(plane, &flags);
    let _nodes = HollowNodes::start(plane.client().await, 2).await;
    create_objects(&plane);
    let mut expected = WRITERS.to_vec();
    expected.extend(["node-controller", "ttl-controller", "ttl-after-finished-controller", "token-cleaner"]);
    check(&plane, &log, &expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_manager_uses_service_accounts() {
    let plane = ControlPlane::empty();
    let (flags, log) = audited(&plane);
    let mut plane = ControlPlane::api_server_with(plane, &flags);
    let controllers = ["controller-manager", "--use-service-account-credentials", "--leader-elect=false"];
    plane.add("controller-manager", &controllers);
    plane.add("scheduler", &["scheduler"]);
    let _nodes = HollowNodes::start(plane.client().await, 2).await;
    create_objects(&plane);
    // Without certificates to publish, and without bootstrap tokens.
    let absent = ["root-ca-cert-publisher", "bootstrap-signer"];
    let expected: Vec<&str> = WRITERS.into_iter().filter(|name| !absent.contains(name)).collect();
    check(&plane, &log, &expected);
}

/// CVE-2025-9708: a server whose certificate another authority signed is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_authority_is_refused() {
    let (plane, other) = (ControlPlane::api_server(), ControlPlane::api_server());
    let line = |text: &str| -> String {
        let line = text.lines().find(|line| line.contains("certificate-authority-data:"));
        line.expect("an authority").to_owned()
    };
    let (own, foreign) = (plane.kubeconfig(), other.kubeconfig());
    let own = std::fs::read_to_string(own).expect("a kubeconfig");
    let foreign = std::fs::read_to_string(foreign).expect("a kubeconfig");
    let file = plane.data().join("foreign.yaml");
    std::fs::write(&file, own.replace(&line(&own), &line(&foreign))).expect("a kubeconfig");
    let client = knarr_client::connect(Some(&file), "test").await.expect("a client");
    let refused = client.apiserver_version().await.expect_err("the certificate is of another authority");
    let chain = format!("{refused:?}");
    assert!(chain.contains("UnknownIssuer") || chain.contains("InvalidCertificate"), "{chain}");
    assert!(plane.client().await.apiserver_version().await.is_ok());
}
