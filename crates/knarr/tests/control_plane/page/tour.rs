//! A tour of the page: sign-in, every page and most actions, while the server restarts.

use serde_json::json;

use super::link;
use crate::support::browser::Browser;
use crate::support::hollow::HollowNodes;
use crate::support::{ControlPlane, wait_for};

const HOSTILE: &str = "<img src=x onerror=\"window.attacked = true\"><script>window.attacked = true</script>\u{1b}[31m";

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
    browser.pictures("problems").await;
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

    // An object, its relations and its journey.
    browser.evaluate("location.hash = '#/object/deployments.apps/default/web'").await;
    browser.shows("Owns").await;
    browser.shows("3 ready of 3").await;
    browser.pictures("deployment").await;
    browser.click("Journey").await;
    browser.shows("Creation").await;
    browser.pictures("journey").await;

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

    // The server restarts; the page finds it again, and shows what has changed.
    browser.evaluate("location.hash = '#/list/deployments.apps'").await;
    browser.until("document.querySelectorAll('.grid-row').length === 1").await;
    plane.restart("server");
    wait_for("the server", || plane.kubectl(&["create", "deployment", "late", "--image=example/web"]).is_ok());
    browser.until("document.querySelectorAll('.grid-row').length === 2").await;
    browser.click("Sign out").await;
    browser.shows("knarr ui").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}
