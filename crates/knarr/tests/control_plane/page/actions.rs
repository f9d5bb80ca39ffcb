//! What can be done with objects, and how the page shows what takes long.

use serde_json::json;

use super::link;
use crate::support::browser::Browser;
use crate::support::hollow::HollowNodes;
use crate::support::{ControlPlane, wait_for};

const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: 'example/web:1'}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: 'example/db:1'}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: c, image: 'example/agent:1'}]}
"#;

fn apply(plane: &ControlPlane, manifest: &str) {
    let file = plane.data().join("manifest.yaml");
    std::fs::write(&file, manifest).expect("a file");
    plane.kubectl(&["apply", "-f", &file.to_string_lossy()]).expect("the objects are applied");
}

async fn open(plane: &ControlPlane) -> Browser {
    let mut browser = Browser::start().await;
    browser.open(&link(plane)).await;
    browser.until("document.querySelector('#nav a')").await;
    browser
}

const KINDS: [(&str, &str); 3] =
    [("deployments.apps", "web"), ("statefulsets.apps", "db"), ("daemonsets.apps", "agent")];

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_restarted_and_rolled_back_with_their_progress() {
    let plane = ControlPlane::server();
    let _nodes = HollowNodes::start(plane.client().await, 2).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    apply(&plane, WORKLOADS);
    let rolled_out = |object: &str| {
        kubectl(&["rollout", "status", object, "--timeout=120s"]);
    };
    let mut browser = open(&plane).await;
    for (kind, name) in KINDS {
        let object = format!("{}/{name}", kind.split('.').next().expect("a plural"));
        let read = |path: &str| kubectl(&["get", &object, &format!("-o=jsonpath={{{path}}}")]);
        rolled_out(&object);
        browser.go(&format!("object/{kind}/default/{name}")).await;
        let before = read(".metadata.generation");
        browser.click("Restart").await;
        browser.confirm("Restart").await;
        browser.shows(&format!("Rolled out {name}")).await;
        assert_ne!(read(".metadata.generation"), before);
        assert!(read(".spec.template.metadata.annotations").contains("kubectl.kubernetes.io/restartedAt"), "{object}");

        // Of the three revisions, the two earlier ones can be chosen.
        kubectl(&["set", "image", &object, &format!("c=example/{name}:2")]);
        rolled_out(&object);
        browser.click("Roll back").await;
        browser.until("document.querySelectorAll('dialog option').length > 0").await;
        let offered =
            browser.evaluate("[...document.querySelectorAll('dialog option')].map((one) => one.textContent)").await;
        assert_eq!(
            offered,
            json!([format!("revision 2: example/{name}:1"), format!("revision 1: example/{name}:1")]),
            "{object}"
        );
        browser.evaluate("document.querySelector('dialog select').value = '1'").await;
        browser.confirm("Roll back").await;
        browser.shows("Rolled back to revision 1").await;
        rolled_out(&object);
        let template = read(".spec.template");
        assert!(template.contains(&format!("example/{name}:1")) && !template.contains("restartedAt"), "{template}");
    }

    // What does not come to an end shows how far it is, and what it waits for.
    let missing = json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "missing"}}}}}).to_string();
    kubectl(&["patch", "statefulset", "db", "--type=merge", "-p", &missing]);
    browser.go("object/statefulsets.apps/default/db").await;
    browser.until("document.querySelector('.rollout progress')?.value === 1").await;
    browser.shows("1 of 2: 1 of 2 pods are ready").await;
    let status = "document.querySelector('.rollout').closest('[role=status]') !== null";
    assert_eq!(browser.evaluate(status).await, json!(true), "progress is announced");
    browser.click("Restart").await;
    browser.confirm("Restart").await;
    browser.shows("Rolling out db:").await;
    // The work goes on whatever page is open, and can be hidden.
    browser.go("problems").await;
    browser.shows("Rolling out db:").await;
    browser.click("Hide").await;
    browser.until("!document.body.innerText.includes('Rolling out db')").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_cordoned_and_drained_as_far_as_budgets_allow() {
    let plane = ControlPlane::server();
    let _nodes = HollowNodes::start(plane.client().await, 2).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    apply(&plane, WORKLOADS);
    kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    let node = kubectl(&["get", "pods", "-l=app=web", "-o=jsonpath={.items[0].spec.nodeName}"]);
    let cordoned = || kubectl(&["get", "node", &node, "-o=jsonpath={.spec.unschedulable}"]);
    let pods =
        || kubectl(&["get", "pods", "-l=app!=agent", &format!("--field-selector=spec.nodeName={node}"), "-o=name"]);
    let mut browser = open(&plane).await;
    browser.go(&format!("object/nodes/-/{node}")).await;
    browser.click("Cordon").await;
    browser.click("Uncordon").await;
    browser
        .until("[...document.querySelectorAll('.actions button')].some((one) => one.textContent === 'Cordon')")
        .await;
    assert_eq!(cordoned(), "");

    // As the budget allows none to go, the drain waits, and says for what.
    kubectl(&["create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=3"]);
    wait_for("the budget", || kubectl(&["get", "pdb", "web", "-o=jsonpath={.status.currentHealthy}"]) == "3");
    browser.click("Drain").await;
    browser.shows("disruption budgets are respected").await;
    browser.confirm("Drain").await;
    browser.shows("a disruption budget delays web-").await;
    browser.until("document.querySelector('#messages progress')").await;
    assert_eq!(cordoned(), "true");
    assert!(pods().contains("web-"), "{}", pods());
    kubectl(&["delete", "poddisruptionbudget", "web"]);
    browser.shows(&format!("Drained {node}")).await;
    assert_eq!(pods(), "", "pods of DaemonSets stay");
    browser.click("Uncordon").await;
    wait_for("the node", || cordoned().is_empty());
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_shows_what_goes_and_what_it_waits_for() {
    let plane = ControlPlane::server();
    let _nodes = HollowNodes::start(plane.client().await, 1).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    apply(&plane, WORKLOADS);
    kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    let pod = kubectl(&["get", "pods", "-l=app=web", "-o=name"]).lines().next().expect("a pod").to_owned();
    let hold = |names: &str| format!(r#"{{"metadata": {{"finalizers": [{names}]}}}}"#);
    kubectl(&["patch", &pod, "--type=merge", "-p", &hold("\"example.com/hold\"")]);
    let mut browser = open(&plane).await;
    browser.go("object/deployments.apps/default/web").await;
    browser.click("Delete").await;
    browser.shows("With it go 4 objects:").await;
    browser.shows("ReplicaSet web-").await;
    browser.confirm("Delete").await;
    browser.shows(&format!("Pod {} waits for example.com/hold", pod.trim_start_matches("pod/"))).await;
    browser.until("document.querySelector('#messages progress')?.value === 4").await;
    kubectl(&["patch", &pod, "--type=merge", "-p", &hold("")]);
    browser.shows("Deleted Deployment web and 4 objects with it").await;
    assert_eq!(kubectl(&["get", "pods", "-l=app=web", "-o=name"]), "");

    // A namespace is deleted by who types its name, and says itself what is left.
    kubectl(&["create", "namespace", "shop"]);
    kubectl(&["create", "configmap", "held", "-n=shop", "--from-literal=a=b"]);
    kubectl(&["patch", "configmap", "held", "-n=shop", "--type=merge", "-p", &hold("\"example.com/hold\"")]);
    browser.go("object/namespaces/-/shop").await;
    browser.click("Delete").await;
    browser.shows("Everything in the namespace is deleted").await;
    browser.shows("ConfigMap").await;
    browser.confirm("Delete").await;
    assert_eq!(browser.evaluate("document.querySelector('dialog') !== null").await, json!(true), "without its name");
    browser.enter("dialog input", "shop").await;
    browser.confirm("Delete").await;
    browser.shows("Deleting Namespace shop:").await;
    browser.shows("example.com/hold").await;
    kubectl(&["patch", "configmap", "held", "-n=shop", "--type=merge", "-p", &hold("")]);
    browser.shows("Deleted Namespace shop").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}
