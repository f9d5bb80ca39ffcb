//! The page on a cluster that is changed and killed meanwhile: it says that the connection is lost, and goes on by itself.

use serde_json::json;

use super::link;
use crate::support::browser::Browser;
use crate::support::hollow::HollowNodes;
use crate::support::{ControlPlane, wait_for};

/// Each page; what it shows before the server is killed; a change that is made once it is back, and what the page shows then.
/// Nobody touches the page.
const TOUR: &[(&str, &str, &[&str], &str)] = &[
    ("list/deployments.apps", "1 of 1", &["create", "deployment", "more", "--image=example/more"], "2 of 2"),
    (
        "object/deployments.apps/default/web",
        "2 ready of 2",
        &["scale", "deployment", "web", "--replicas=3"],
        "3 ready of 3",
    ),
    ("cluster", "of 4 pods", &["scale", "deployment", "more", "--replicas=2"], "of 5 pods"),
    ("network", "0 Ingresses", &["create", "ingress", "shop", "--rule=shop.example/*=web:80"], "1 Ingresses"),
    ("problems", "Problems", &["create", "service", "clusterip", "nobody", "--tcp=80"], "service/nobody"),
    (
        "object/deployments.apps/default/web/journey",
        "Creation",
        &["scale", "deployment", "web", "--replicas=1"],
        "scale stored by kubectl",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn pages_survive_the_death_of_the_server() {
    let mut plane = ControlPlane::server();
    let _nodes = HollowNodes::start(plane.client().await, 1).await;
    plane.kubectl(&["create", "deployment", "web", "--image=example/web", "--replicas=2"]).expect("a Deployment");
    let mut browser = Browser::start().await;
    browser.open(&link(&plane)).await;
    browser.until("document.querySelector('#nav a')").await;
    browser.evaluate("window.isSamePage = true").await;
    for (page, before, change, after) in TOUR {
        browser.go(page).await;
        if *page == "object/deployments.apps/default/web/journey" {
            // The journal starts with the server.
            plane.kubectl(&["annotate", "deployment", "web", "--overwrite", "note=seen"]).expect("an annotation");
        }
        browser.shows(before).await;
        plane.kill("server");
        browser.until("!document.getElementById('offline').hidden").await;
        browser.shows("The API server does not respond. Trying again.").await;
        plane.restart("server");
        browser.until("document.getElementById('offline').hidden").await;
        wait_for("the change", || plane.kubectl(change).is_ok());
        browser.shows(after).await;
        let errors = "[...document.querySelectorAll('#messages .error')].map((one) => one.textContent)";
        assert_eq!(browser.evaluate(errors).await, json!([]), "{page}");
    }

    // A page that is opened while the server is away shows its object when it is back.
    browser.go("list/pods").await;
    browser.until("document.querySelector('.grid-row')").await;
    plane.kill("server");
    browser.until("!document.getElementById('offline').hidden").await;
    browser.go("object/deployments.apps/default/more").await;
    browser.until("document.querySelector('main h1')?.textContent.includes('more')").await;
    plane.restart("server");
    browser.shows("2 ready of 2").await;
    assert_eq!(browser.evaluate("window.isSamePage").await, json!(true), "nothing was loaded again");

    // Who signed out stays so, whatever the server remembers.
    let token = browser.evaluate("sessionStorage.getItem('knarr-session')").await;
    browser.click("Sign out").await;
    browser.shows("knarr ui").await;
    plane.restart("server");
    let status = format!(
        "fetch('/api/v1/pods', {{ headers: {{ Authorization: 'Bearer ' + {token} }} }}).then((found) => found.status, () => 0)"
    );
    wait_for("the server", || plane.kubectl(&["get", "--raw", "/readyz"]).is_ok());
    assert_eq!(browser.evaluate(&status).await, json!(401));
    assert_eq!(browser.errors, Vec::<String>::new());
}
