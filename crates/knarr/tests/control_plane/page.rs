//! The web page in a real browser: sign-in, every page and action, hostile objects, a node that dies, and a server that restarts
//! meanwhile.

use futures::StreamExt as _;
use knarr_client::k8s_openapi::api::core::v1::Pod;
use knarr_client::kube::Api;
use knarr_client::kube::api::PostParams;
use serde_json::json;

use crate::support::browser::Browser;
use crate::support::hollow::{self, HollowNodes};
use crate::support::{ControlPlane, wait_for};

const HOSTILE: &str = "<img src=x onerror=\"window.attacked = true\"><script>window.attacked = true</script>\u{1b}[31m";

fn link(plane: &ControlPlane) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_knarr"))
        .args(["ui", "--kubeconfig"])
        .arg(plane.kubeconfig())
        .output()
        .expect("knarr starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_signs_in_and_tours_the_page() {
    let mut plane = ControlPlane::server();
    let client = plane.client().await;
    let _nodes = HollowNodes::start(client, 2).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    kubectl(&["create", "deployment", "web", "--image=example/web", "--replicas=3"]);
    let text = format!("--from-literal=text={HOSTILE}");
    kubectl(&["create", "configmap", "hostile", &text, "--from-literal=managedFields=kept"]);
    kubectl(&["annotate", "configmap", "hostile", &format!("note={HOSTILE}")]);
    kubectl(&["create", "deployment", "stuck", "--image=example/web"]);
    kubectl(&["create", "service", "clusterip", "nobody", "--tcp=80"]);
    kubectl(&["create", "ingress", "shop", "--rule=shop.example/*=nobody:80"]);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    let manifest = plane.data().join("claim.json");
    std::fs::write(&manifest, claim.to_string()).expect("a file");
    kubectl(&["create", "-f", &manifest.to_string_lossy()]);
    let unschedulable = json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "missing"}}}}}).to_string();
    kubectl(&["patch", "deployment", "stuck", "--type=merge", "-p", &unschedulable]);

    let address = link(&plane);
    let base = address.split('#').next().expect("an address").to_owned();
    let mut browser = Browser::start().await;
    browser.open(&address).await;
    browser.shows("deployment/stuck").await;
    browser.picture("problems").await;
    assert_eq!(browser.evaluate("location.href").await, json!(format!("{base}#/problems")), "the code is gone");
    browser.shows("kubectl label node").await;

    browser.evaluate("location.hash = '#/cluster'").await;
    browser.shows("hollow-1").await;
    browser.shows("2 of 2 nodes ready").await;
    browser.picture("cluster").await;
    assert_eq!(browser.unnamed_controls().await, Vec::<String>::new());

    browser.shows("requested").await;
    browser.shows("Pods by namespace").await;
    browser.shows("health checks of the server pass").await;

    browser.evaluate("location.hash = '#/list/pods'").await;
    browser.until("document.querySelectorAll('.grid-row').length >= 4").await;
    browser.picture("pods").await;
    browser.evaluate("location.hash = '#/kinds'").await;
    browser.shows("CustomResourceDefinition").await;
    browser.evaluate("location.hash = '#/access'").await;
    browser.shows("system:controller:").await;
    browser.picture("access").await;
    browser.evaluate("document.querySelector('input[placeholder^=user]').value = 'default:default'").await;
    browser.click("Decide").await;
    browser.shows("No role that is bound to system:serviceaccount:default:default").await;
    browser.evaluate("document.querySelector('input[placeholder^=user]').value = 'system:kube-scheduler'").await;
    browser.click("Decide").await;
    browser.shows("Asked for system:kube-scheduler with").await;
    browser.shows("Yes.").await;
    browser.evaluate("location.hash = '#/network'").await;
    browser.shows("1 without a ready endpoint").await;
    browser.shows("shop.example").await;
    browser.picture("network").await;
    browser.evaluate("location.hash = '#/storage'").await;
    browser.shows("1 not bound").await;
    for page in ["problems", "cluster", "list/pods", "network", "storage", "kinds", "access"] {
        browser.evaluate(&format!("location.hash = '#/{page}'")).await;
        browser.until("document.querySelector('main h1')").await;
        assert_eq!(browser.unnamed_controls().await, Vec::<String>::new(), "{page}");
    }

    // An object, its relations and its journey.
    browser.evaluate("location.hash = '#/object/deployments.apps/default/web'").await;
    browser.shows("Owns").await;
    browser.shows("3 ready of 3").await;
    browser.picture("deployment").await;
    browser.click("Journey").await;
    browser.shows("Creation").await;
    browser.picture("journey").await;

    // Scale, with the dialog.
    browser.click("State").await;
    browser.click("Scale").await;
    browser.until("document.querySelector('dialog input')").await;
    browser.evaluate("document.querySelector('dialog input').value = 1").await;
    browser
        .evaluate("[...document.querySelectorAll('dialog button')].find((one) => one.textContent === 'Scale').click()")
        .await;
    browser.shows("1 ready of 1").await;

    // An edit with the preview of its effect.
    browser.click("YAML").await;
    browser.until("document.querySelector('textarea')?.value.includes('replicas: 1')").await;
    browser
        .evaluate("(() => { const area = document.querySelector('textarea'); area.value = area.value.replace('replicas: 1', 'replicas: 2'); area.dispatchEvent(new Event('input')); })()")
        .await;
    browser.click("Review the change").await;
    browser
        .until("[...document.querySelectorAll('.diff .add')].some((line) => line.textContent.includes('replicas: 2'))")
        .await;
    browser.picture("edit").await;
    browser.click("Save").await;
    browser.shows("Saved").await;
    wait_for("the edit", || kubectl(&["get", "deployment", "web", "-o=jsonpath={.spec.replicas}"]) == "2");

    // The same in the form, which is made from the object.
    browser.click("Form").await;
    let field = "[...document.querySelectorAll('.field')].find((one) => one.querySelector('[title=\"spec.replicas\"]'))?.querySelector('input')";
    browser.until(field).await;
    browser
        .evaluate(&format!(
            "(() => {{ const field = {field}; field.value = '3'; field.dispatchEvent(new Event('input')); }})()"
        ))
        .await;
    assert_eq!(browser.unnamed_controls().await, Vec::<String>::new(), "the form");
    browser.click("Review the change").await;
    browser
        .until("[...document.querySelectorAll('.diff .add')].some((line) => line.textContent.includes('replicas: 3'))")
        .await;
    browser.picture("form").await;
    browser.click("Save").await;
    wait_for("the form", || kubectl(&["get", "deployment", "web", "-o=jsonpath={.spec.replicas}"]) == "3");

    // Deleting says what goes with it.
    browser.click("Delete").await;
    browser.shows("With it go").await;
    browser
        .evaluate("[...document.querySelectorAll('dialog button')].find((one) => one.textContent === 'Delete').click()")
        .await;
    wait_for("the deletion", || !kubectl(&["get", "deployments", "-o=name"]).contains("deployment.apps/web"));

    // Text of the cluster stays text.
    browser.evaluate("location.hash = '#/object/configmaps/default/hostile/yaml'").await;
    browser.until("document.querySelector('textarea')?.value.includes('onerror')").await;
    // The bookkeeping of the server is left out, and nothing else that has its name.
    let areas = "document.querySelector('textarea').value.match(/managedFields: kept|manager:/g)";
    assert_eq!(browser.evaluate(areas).await, json!(["managedFields: kept"]));
    browser.evaluate("location.hash = '#/object/configmaps/default/hostile'").await;
    browser.shows("Created").await;
    assert_eq!(browser.evaluate("window.attacked").await, json!(null));

    // Whatever kind it is of, what goes with an object is listed.
    let owner = kubectl(&["get", "configmap", "hostile", "-o=jsonpath={.metadata.uid}"]);
    let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "hostile", "uid": owner}]);
    let owners = json!({"metadata": {"ownerReferences": owners}}).to_string();
    kubectl(&["patch", "service", "nobody", "--type=merge", "-p", &owners]);
    browser.click("Delete").await;
    browser.shows("Service nobody").await;
    browser.click("Cancel").await;

    // A node is drained: all its pods move, and it is cordoned.
    browser.evaluate("location.hash = '#/object/nodes/-/hollow-0'").await;
    browser.click("Drain").await;
    browser.shows("disruption budgets are respected").await;
    browser
        .evaluate("[...document.querySelectorAll('dialog button')].find((one) => one.textContent === 'Drain').click()")
        .await;
    browser.shows("Drained hollow-0").await;
    browser.click("Uncordon").await;

    // The keyboard reaches pages and objects.
    browser.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '3', bubbles: true }))").await;
    browser.until("location.hash === '#/list/pods'").await;
    browser.evaluate("(() => { document.activeElement.blur(); document.querySelector('.skip').click(); })()").await;
    browser.until("document.activeElement.id === 'main' && location.hash === '#/list/pods'").await;

    // The server restarts; the page finds it again, and its session has ended.
    browser.evaluate("location.hash = '#/list/deployments.apps'").await;
    browser.until("document.querySelectorAll('.grid-row').length === 1").await;
    plane.restart("server");
    browser.shows("knarr ui").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}

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

    let mut browser = Browser::start().await;
    browser.open(&link(&plane)).await;
    browser.until("document.querySelector('#nav a')").await;
    let role = "object/clusterroles.rbac.authorization.k8s.io/-/%3Cimg%20src%3Dx%20onerror%3D%22window.attacked%20%3D%20true%22%3E%2Ca%3Db";
    // The page, and what it shows at last.
    let pages = [
        ("cluster", "hollow-0"),
        ("constructor", "Problems"),
        ("access", "<img src=x"),
        ("list/events", "Hostile"),
        ("list/constructors.evil.example", "2 of 2"),
        ("list/clusterrolebindings.rbac.authorization.k8s.io", "<script>window.attacked"),
        (role, "Created"),
        ("object/namespaces/-/constructor", "Active"),
        ("object/nodes/-/constructor", "Conditions"),
        ("object/configmaps/constructor/hostile", "Created"),
        ("object/configmaps/constructor/hostile/form", "__proto__"),
        ("object/constructors.evil.example/constructor/texts", "Created"),
        ("object/constructors.evil.example/constructor/texts/form", "<img src=x"),
        ("object/constructors.evil.example/constructor/texts/constructor", "Created"),
        ("object/constructors.evil.example/constructor/empty", "Conditions"),
        ("object/deployments.apps/default/web", "ready of"),
        ("object/deployments.apps/default/web/journey", "Creation"),
    ];
    for (number, (page, text)) in pages.into_iter().enumerate() {
        kubectl(&["scale", "deployment", "web", &format!("--replicas={}", 1 + number % 4)]);
        browser.evaluate(&format!("location.hash = '#/{page}'")).await;
        let shown = "(document.querySelector('main').innerText + [...document.querySelectorAll('main input, main textarea')].map((one) => one.value))";
        browser.until(&format!("{shown}.includes({})", json!(text))).await;
        browser.until("!document.querySelector('main [aria-busy=true]')").await;
        let injected = "[document.querySelectorAll('main img, main script').length, window.attacked, ({}).attacked]";
        assert_eq!(browser.evaluate(injected).await, json!([0, null, null]), "{page}");
        let errors = "[...document.querySelectorAll('#messages .error')].map((one) => one.textContent)";
        assert_eq!(browser.evaluate(errors).await, json!([]), "{page}");
    }

    // Pages that are open show that the node has died.
    browser.evaluate("location.hash = '#/object/nodes/-/constructor'").await;
    browser.shows("its kubelet has stopped reporting").await;
    browser.evaluate("location.hash = '#/cluster'").await;
    browser.shows("1 of 2 nodes ready").await;
    browser.evaluate("location.hash = '#/problems'").await;
    browser.shows("node/constructor").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// The list of many pods: only the rows in view are elements, whatever their number. `KNARR_PAGE_PODS` chooses how many.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_many_pods_draws_only_what_is_in_view() {
    let count: usize = std::env::var("KNARR_PAGE_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(1500);
    let plane = ControlPlane::server();
    let client = plane.client().await;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let create = |name: String| {
        let pods = pods.clone();
        async move {
            let pod = json!({"metadata": {"name": name}, "spec": {
                "schedulerName": "none", "containers": [{"name": "main", "image": "example/web"}]}});
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            pods.create(&PostParams::default(), &pod).await.expect("the pod is created");
        }
    };
    let names = (0..count).map(|number| format!("pod-{number}"));
    futures::stream::iter(names.map(&create)).buffer_unordered(32).for_each(|()| async {}).await;

    let mut browser = Browser::start().await;
    browser.open(&link(&plane)).await;
    browser.until("document.querySelector('#nav a')").await;
    // From the click to the first rows, and to all of them.
    let measure = format!(
        "(async () => {{ const begin = performance.now(); location.hash = '#/list/pods'; \
         const until = async (done) => {{ while (!done()) await new Promise((next) => setTimeout(next, 5)); return Math.round(performance.now() - begin); }}; \
         const first = await until(() => document.querySelector('.grid-row')); \
         const all = await until(() => document.querySelector('[role=status]')?.textContent === '{count} of {count}'); \
         return {{ first, all, rows: document.querySelectorAll('.grid-row').length, memory: performance.memory.usedJSHeapSize >> 20 }}; }})()"
    );
    let measured = browser.evaluate(&measure).await;
    println!("{count} pods: {measured}");
    assert!(measured["rows"].as_u64().is_some_and(|rows| (1..200).contains(&rows)), "{measured}");
    // Who is at a row stays there when another one appears above it.
    let focus = "document.querySelector('.grid-row[aria-rowindex=\"4\"]').focus(); document.activeElement.textContent";
    let focused = browser.evaluate(focus).await;
    create("a-new-pod".to_owned()).await;
    browser.until(&format!("document.querySelector('[role=status]').textContent === '{0} of {0}'", count + 1)).await;
    browser.until("document.querySelector('.grid-row[aria-rowindex=\"2\"]').textContent.includes('a-new-pod')").await;
    let text = browser.evaluate("document.activeElement.textContent").await;
    let name = |text: &serde_json::Value| text.as_str().and_then(|text| text.split("0/1").next()).map(str::to_owned);
    assert_eq!(name(&text), name(&focused));
    let count = count + 1;

    // The end of the list, and one row among them.
    browser.evaluate("document.querySelector('.grid').scrollTop = 1e9").await;
    browser.until(&format!("document.querySelector('.grid-row[aria-rowindex=\"{}\"]')", count + 1)).await;
    browser.evaluate("(() => { const field = document.querySelector('main input[type=search]'); field.value = 'pod-77'; field.dispatchEvent(new Event('input')); })()").await;
    browser.until(&format!("!document.querySelector('[role=status]').textContent.startsWith('{count} ')")).await;
    browser.shows("pod-77").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_the_rights_of_its_user_and_a_code_works_once() {
    let plane = ControlPlane::server();
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    kubectl(&["create", "serviceaccount", "reader"]);
    kubectl(&["create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader"]);
    let token = kubectl(&["create", "token", "reader"]);
    let server = kubectl(&["config", "view", "-o=jsonpath={.clusters[0].cluster.server}"]);
    let request = |method: &str, path: &str, token: &str, body: &str| {
        let mut command = std::process::Command::new("curl");
        command.args(["-sk", "-X", method, "-w", "\n%{http_code}", &format!("{server}{path}")]);
        if !token.is_empty() {
            command.args(["-H", &format!("Authorization: Bearer {token}")]);
        }
        if !body.is_empty() {
            command.args(["-H", "Content-Type: application/json", "-d", body]);
        }
        let output = String::from_utf8(command.output().expect("curl is installed").stdout).expect("text");
        let (body, code) = output.rsplit_once('\n').expect("a code");
        (code.to_owned(), body.to_owned())
    };
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(request("GET", "/ui/", "", "").0, "200", "the page is public");
    assert_eq!(request("POST", "/ui/link", "", "").0, "403", "anonymous users create no link");
    assert_eq!(request("GET", "/ui/problems", "", "").0, "403");
    let code = parse(&request("POST", "/ui/link", &token, "").1)["code"].as_str().expect("a code").to_owned();
    let exchange = || request("POST", "/ui/session", "", &json!({"code": code}).to_string());
    let session = parse(&exchange().1)["token"].as_str().expect("a token").to_owned();
    assert_eq!(exchange().0, "403", "used before");
    assert_eq!(request("GET", "/api/v1/namespaces/default/pods", &session, "").0, "200");
    assert_eq!(request("GET", "/api/v1/namespaces/default/secrets", &session, "").0, "403");
    assert_eq!(request("GET", "/api/v1/nodes", &session, "").0, "403");
    assert_eq!(request("POST", "/ui/link", &session, "").0, "403", "a session cannot prolong itself");
    // Who may read one namespace has the diagnosis of that one.
    kubectl(&["create", "service", "clusterip", "nobody", "--tcp=80"]);
    let problems = |query: &str| request("GET", &format!("/ui/problems{query}"), &session, "").1;
    assert!(problems("?namespace=default").contains("nobody"), "{}", problems("?namespace=default"));
    assert!(!problems("").contains("nobody"), "{}", problems(""));
    assert_eq!(request("GET", "/ui/problems?namespace=a/../b", &session, "").0, "400");
    // The account's deletion ends the session with its token.
    kubectl(&["delete", "serviceaccount", "reader"]);
    wait_for("the session to end", || request("GET", "/api/v1/namespaces/default/pods", &session, "").0 == "401");
}
