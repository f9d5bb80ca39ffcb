//! Objects that are made to break the page, and a node that dies.

use serde_json::json;

use super::link;
use crate::support::browser::Browser;
use crate::support::hollow::{self, HollowNodes};
use crate::support::{ControlPlane, wait_for};

/// Every page shows objects that are made to break it, while others change and a node stops reporting.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_objects_and_a_node_that_dies_break_no_page() {
    let mut plane = ControlPlane::api_server();
    plane.add("controller-manager", &["controller-manager", "--node-monitor-grace-period=20s"]);
    plane.add("scheduler", &["scheduler"]);
    let client = plane.client().await;
    let _nodes = HollowNodes::start(client.clone(), 1).await;
    // Nobody renews its lease.
    hollow::register(&client, "constructor", "", &json!({"cpu": "1", "memory": "1Gi", "pods": "10"})).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control_plane");
    kubectl(&["create", "-f", &format!("{files}/hostile_kind.yaml")]);
    kubectl(&["wait", "--for=condition=Established", "crd/constructors.evil.example", "--timeout=120s"]);
    wait_for("the hostile objects", || plane.kubectl(&["apply", "-f", &format!("{files}/hostile.yaml")]).is_ok());
    kubectl(&["create", "deployment", "web", "--image=example/web", "--replicas=3"]);
    let uid = kubectl(&["get", "pod", "hostile", "-n=constructor", "-o=jsonpath={.metadata.uid}"]);
    let event = json!({"involvedObject": {"uid": uid}}).to_string();
    kubectl(&["patch", "event", "hostile-pod", "-n=constructor", "--type=merge", "-p", &event]);
    // Its hollow node reports that it runs; then it says something else of itself.
    wait_for("the hostile pod", || kubectl(&["get", "pod", "hostile", "-n=constructor"]).contains("Running"));
    kubectl(&[
        "patch",
        "pod",
        "hostile",
        "-n=constructor",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status().to_string(),
    ]);

    let mut browser = Browser::start().await;
    browser.open(&link(&plane)).await;
    browser.until("document.querySelector('#nav a')").await;
    for (number, (page, text)) in PAGES.iter().enumerate() {
        kubectl(&["scale", "deployment", "web", &format!("--replicas={}", 1 + number % 4)]);
        browser.evaluate(&format!("location.hash = '#/{page}'")).await;
        let shown = "(document.querySelector('main').innerText + [...document.querySelectorAll('main input, main textarea')].map((one) => one.value))";
        browser.until(&format!("{shown}.includes({})", json!(text))).await;
        browser.until("!document.querySelector('main [aria-busy=true]')").await;
        nothing_ran(&mut browser, page).await;
        let errors = "[...document.querySelectorAll('#messages .error')].map((one) => one.textContent)";
        assert_eq!(browser.evaluate(errors).await, json!([]), "{page}");
    }
    inputs(&mut browser).await;

    // Pages that are open show that the node has died.
    browser.evaluate("location.hash = '#/object/nodes/-/constructor'").await;
    browser.shows("its kubelet has stopped reporting").await;
    browser.evaluate("location.hash = '#/cluster'").await;
    browser.shows("1 of 2 nodes ready").await;
    browser.evaluate("location.hash = '#/problems'").await;
    browser.shows("node/constructor").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// The page, and what it shows at last.
const PAGES: &[(&str, &str)] = &[
    ("cluster", "hollow-0"),
    ("constructor", "Problems"),
    ("<img src=x onerror=window.attacked=true>", "Problems"),
    ("access", "javascript:window.attacked = true"),
    ("network", "/<img src=x"),
    ("list/events", "see javascript:window.attacked=true"),
    ("list/pods", "<script>window.attacked = true"),
    ("list/constructors.evil.example", "2 of 2"),
    ("list/%3Cimg%20src%3Dx%20onerror%3Dwindow.attacked%3Dtrue%3E", "The server has no kind <img"),
    ("list/clusterrolebindings.rbac.authorization.k8s.io", "<script>window.attacked"),
    (
        "object/clusterroles.rbac.authorization.k8s.io/-/%3Cimg%20src%3Dx%20onerror%3D%22window.attacked%20%3D%20true%22%3E%2Ca%3Db",
        "Created",
    ),
    ("object/clusterrolebindings.rbac.authorization.k8s.io/-/javascript%3Awindow.attacked%20%3D%20true", "Relations"),
    ("object/clusterroles.rbac.authorization.k8s.io/-/javascript%3Awindow.attacked%20%3D%20true/yaml", "<svg onload="),
    ("object/namespaces/-/constructor", "Active"),
    ("object/nodes/-/constructor", "Conditions"),
    ("object/configmaps/constructor/hostile", "Created"),
    ("object/configmaps/constructor/hostile/form", "__proto__"),
    ("object/pods/constructor/hostile", "see javascript:window.attacked=true"),
    ("object/pods/constructor/hostile", "<script>window.attacked = true</script>"),
    ("object/pods/constructor/hostile/yaml", "javascript:window.attacked = true"),
    ("object/pods/constructor/hostile/form", "</textarea><script>"),
    ("object/pods/constructor/hostile/journey", "Creation"),
    ("object/pods/constructor/hostile/logs", "containers"),
    ("object/pods/constructor/hostile/shell", "Open"),
    ("object/services/constructor/hostile/yaml", "<iframe src="),
    ("object/constructors.evil.example/constructor/texts", "Created"),
    ("object/constructors.evil.example/constructor/texts/form", "<img src=x"),
    ("object/constructors.evil.example/constructor/texts/constructor", "Created"),
    ("object/constructors.evil.example/constructor/empty", "Conditions"),
    ("object/deployments.apps/default/web", "ready of"),
    ("object/deployments.apps/default/web/journey", "Creation"),
];

/// What a kubelet could report of a pod, if its node is not to be trusted.
fn status() -> serde_json::Value {
    let hostile = "<script>window.attacked = true</script>\u{1b}[31m\u{202e}";
    json!({"status": {
        "reason": "<svg onload=window.attacked=true>", "message": hostile,
        "conditions": [{"type": "Ready", "status": "False", "reason": hostile, "message": hostile}],
        "containerStatuses": [{"name": "<svg onload=window.attacked=true>", "ready": false, "restartCount": 1, "image": hostile, "imageID": hostile,
            "state": {"waiting": {"reason": hostile, "message": hostile}}}],
    }})
}

/// No element, handler or link of the page is one that text of the cluster could have become, and nothing of it ran.
async fn nothing_ran(browser: &mut Browser, page: &str) {
    let found = "(() => { const all = [...document.querySelectorAll('body *')]; return { \
         elements: document.querySelectorAll('main :is(img, script, iframe, object, embed, base, link, style, meta, audio, video)').length, \
         handlers: all.filter((one) => [...one.attributes].some(({ name }) => name.startsWith('on') || name === 'srcdoc')).length, \
         links: [...document.querySelectorAll('a, area')].map((one) => one.href).filter((link) => new URL(link).origin !== location.origin), \
         escapes: /[\\u001b\\u009b\\u202e]/.test(document.querySelector('main').innerText), \
         ran: [window.attacked ?? false, ({}).attacked ?? false] }; })()";
    let expected = json!({"elements": 0, "handlers": 0, "links": [], "escapes": false, "ran": [false, false]});
    assert_eq!(browser.evaluate(found).await, expected, "{page}");
}

/// What a person types or pastes is text, too; and so is what a dialog shows.
async fn inputs(browser: &mut Browser) {
    browser.enter("#find-text", "<img/src=x/onerror=window.attacked=true>").await;
    browser.evaluate("document.getElementById('find').requestSubmit()").await;
    browser.until("document.querySelector('#messages .error')?.textContent.includes('<img')").await;
    assert_eq!(browser.evaluate("document.querySelectorAll('#messages img').length").await, json!(0));
    browser.go("object/clusterroles.rbac.authorization.k8s.io/-/javascript%3Awindow.attacked%20%3D%20true").await;
    browser.click("Delete").await;
    browser.shows("Delete ClusterRole javascript:window.attacked = true").await;
    nothing_ran(browser, "a dialog").await;
    browser.press("Escape", 0).await;
    browser.until("!document.querySelector('dialog')").await;
}
