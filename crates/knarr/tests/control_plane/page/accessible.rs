//! The page for people who use the keyboard or a screen reader, or see little contrast.

use serde_json::json;

use super::link;
use crate::support::ControlPlane;
use crate::support::accessibility::{check, walk};
use crate::support::browser::Browser;
use crate::support::hollow::{self, HollowNodes};

/// Each page, and what it shows when it is complete.
const PAGES: [(&str, &str); 18] = [
    ("problems", "deployment/stuck"),
    ("cluster", "Pods by namespace"),
    ("list/pods", "5 of 5"),
    ("list/deployments.apps", "2 of 2"),
    ("list/nodes", "NotReady"),
    ("network", "1 without a ready endpoint"),
    ("storage", "Classes"),
    ("kinds", "CustomResourceDefinition"),
    ("access", "What you may do"),
    ("object/deployments.apps/default/web", "Relations"),
    ("object/deployments.apps/default/stuck", "Conditions"),
    ("object/deployments.apps/default/web/form", "metadata"),
    ("object/deployments.apps/default/web/yaml", "Review the change"),
    ("object/deployments.apps/default/web/journey", "Creation"),
    ("object/deployments.apps/default/web/logs", "previous containers"),
    ("object/services/default/nobody", "Port-forward"),
    ("object/nodes/-/hollow-0", "Conditions"),
    ("object/secrets/default/keys/form", "Show"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_legible_and_works_by_keyboard() {
    let plane = ControlPlane::server();
    let client = plane.client().await;
    let _nodes = HollowNodes::start(client.clone(), 1).await;
    hollow::register(&client, "silent", "", &json!({"cpu": "1", "memory": "1Gi", "pods": "10"})).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}).to_string();
    kubectl(&["patch", "node", "silent", "--subresource=status", "--type=strategic", "-p", &not_ready]);
    kubectl(&["cordon", "silent"]);
    kubectl(&["create", "deployment", "web", "--image=example/web", "--replicas=3"]);
    kubectl(&["create", "deployment", "stuck", "--image=example/web"]);
    let missing = json!({"spec": {"template": {"spec": {"nodeSelector": {"disk": "missing"}}}}}).to_string();
    kubectl(&["patch", "deployment", "stuck", "--type=merge", "-p", &missing]);
    kubectl(&["create", "service", "clusterip", "nobody", "--tcp=80"]);
    kubectl(&["create", "ingress", "shop", "--rule=shop.example/*=nobody:80"]);
    kubectl(&["create", "secret", "generic", "keys", "--from-literal=key=value"]);
    kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);

    let mut browser = Browser::start().await;
    browser.open(&link(&plane)).await;
    browser.until("document.querySelector('#nav a')").await;
    for (page, text) in PAGES {
        browser.go(page).await;
        browser.shows(text).await;
        browser.until("!document.querySelector('main [aria-busy=true]')").await;
        check(&mut browser, page).await;
    }
    dialogs(&mut browser).await;
    announcements(&mut browser).await;
    assert_eq!(browser.errors, Vec::<String>::new());

    // Who is not signed in has a page, too.
    browser.click("Sign out").await;
    browser.shows("knarr ui").await;
    assert_eq!(browser.unnamed_controls().await, Vec::<String>::new());
}

/// The focus moves into a dialog, stays there, and returns to where it was; Escape cancels.
async fn dialogs(browser: &mut Browser) {
    for (page, button, within) in [
        ("object/deployments.apps/default/web", "Scale", "Replicas"),
        ("object/deployments.apps/default/web", "Restart", "Restart"),
        ("object/deployments.apps/default/web", "Delete", "Cancel"),
        ("object/nodes/-/hollow-0", "Drain", "Cancel"),
        ("object/namespaces/-/default", "Delete", "Type default to confirm"),
    ] {
        browser.go(page).await;
        let found =
            format!("[...document.querySelectorAll('.actions button')].find((one) => one.textContent === '{button}')");
        browser.until(&found).await;
        browser.evaluate(&format!("{found}.focus()")).await;
        browser.press("Enter", 0).await;
        browser.until("document.querySelector('dialog:modal')").await;
        let focused = "document.querySelector('dialog').contains(document.activeElement) && \
             (document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent)";
        assert_eq!(browser.evaluate(focused).await, json!(within), "{page} {button}");
        let title = "(() => { const dialog = document.querySelector('dialog'); return dialog.getAttribute('aria-modal') === 'true' \
             && document.getElementById(dialog.getAttribute('aria-labelledby')).textContent.trim() !== ''; })()";
        assert_eq!(browser.evaluate(title).await, json!(true), "{page} {button}: the dialog has a title and is modal");
        assert_eq!(browser.unnamed_controls().await, Vec::<String>::new(), "{page} {button}");
        walk(browser, &format!("the dialog {button} of {page}")).await;
        browser.press("Escape", 0).await;
        browser.until("!document.querySelector('dialog')").await;
        let back = browser.evaluate("document.activeElement.textContent").await;
        assert_eq!(back, json!(button), "{page}: the focus returns");
    }
    // The keys are shown by a key, and closed by another.
    browser.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '?', bubbles: true }))").await;
    browser.shows("go to a kind or an object").await;
    browser.press("Enter", 0).await;
    browser.until("!document.querySelector('dialog')").await;
}

/// Errors interrupt a screen reader, other messages wait for their turn, and both can be dismissed.
async fn announcements(browser: &mut Browser) {
    browser.enter("#find-text", "nonsense/web").await;
    browser.evaluate("document.getElementById('find').requestSubmit()").await;
    browser.until("document.querySelector('#messages [role=alert]')?.textContent.includes('nonsense')").await;
    check(browser, "an error").await;
    let close = "document.querySelector('#messages button[aria-label=Dismiss]')";
    browser.evaluate(&format!("{close}.focus()")).await;
    browser.press("Enter", 0).await;
    browser.until(&format!("!{close}")).await;
}
