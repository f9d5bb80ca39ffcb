//! Checks whether people who use the keyboard, a screen reader, or see little contrast can use the page that is open.

use std::collections::BTreeSet;

use serde_json::json;

use super::browser::Browser;

const CHECKS: &str = include_str!("accessibility.js");

/// Everything that can be checked of a page, with nothing wrong.
pub async fn check(browser: &mut Browser, page: &str) {
    assert_eq!(browser.unnamed_controls().await, Vec::<String>::new(), "{page}: controls without a name");
    for scheme in ["dark", "light"] {
        browser.prefer(scheme).await;
        assert_eq!(
            browser.evaluate(&format!("({CHECKS}).contrast()")).await,
            json!([]),
            "{page}: contrast in {scheme}"
        );
    }
    assert_eq!(browser.evaluate(&format!("({CHECKS}).structure()")).await, json!([]), "{page}");
    walk(browser, page).await;
}

/// Walks through the page with the Tab key: it reaches everything that can be acted on, in the order of the page, visibly, and
/// comes around.
pub async fn walk(browser: &mut Browser, page: &str) {
    // From the start of the page, wherever the focus was.
    let start = "(() => { const start = document.createElement('span'); start.tabIndex = -1; \
         (document.querySelector('dialog[open]') ?? document.body).prepend(start); start.focus(); start.remove(); })()";
    browser.evaluate(start).await;
    let count = format!("({CHECKS}).stops().length");
    let most = browser.evaluate(&count).await.as_u64().expect("a number") + 50;
    let mut visited: Vec<u64> = Vec::new();
    loop {
        browser.press("Tab", 0).await;
        let focused = browser.evaluate(&format!("({CHECKS}).focused()")).await;
        assert_eq!(focused["wrong"], json!([]), "{page}");
        let Some(at) = focused["at"].as_u64() else { break };
        if visited.first() == Some(&at) {
            break;
        }
        assert!((visited.len() as u64) < most, "{page}: the keyboard is trapped, last at {focused}");
        visited.push(at);
    }
    assert!(visited.is_sorted(), "{page}: the keyboard walks in another order than people read: {visited:?}");
    let reached: BTreeSet<u64> = visited.into_iter().collect();
    let all = browser.evaluate(&count).await.as_u64().expect("a number");
    let missed = (0..all).find(|at| !reached.contains(at));
    if let Some(missed) = missed {
        let name = format!("(() => {{ const checks = ({CHECKS}); return checks.named(checks.stops()[{missed}]); }})()");
        let name = browser.evaluate(&name).await;
        panic!("{page}: the keyboard does not reach {name}");
    }
}
