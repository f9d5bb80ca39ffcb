//! A list of many pods, and how quick it is.

use futures::StreamExt as _;
use knarr_client::k8s_openapi::api::core::v1::Pod;
use knarr_client::kube::Api;
use knarr_client::kube::api::PostParams;
use serde_json::json;

use super::link;
use crate::support::ControlPlane;
use crate::support::browser::Browser;

/// The list of many pods: only the rows in view are elements, whatever their number. `KNARR_PAGE_PODS` chooses how many; the
/// figures of docs/page.md are those of 10,000.
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
        "(async () => {{ const start = performance.now(); location.hash = '#/list/pods'; \
         const until = async (done) => {{ while (!done()) await new Promise((next) => setTimeout(next, 5)); return Math.round(performance.now() - start); }}; \
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

    quick(&mut browser, count).await;

    // The end of the list, and one row among them.
    browser.evaluate("document.querySelector('.grid').scrollTop = 1e9").await;
    browser.until(&format!("document.querySelector('.grid-row[aria-rowindex=\"{}\"]')", count + 1)).await;
    browser.evaluate("(() => { const field = document.querySelector('main input[type=search]'); field.value = 'pod-77'; field.dispatchEvent(new Event('input')); })()").await;
    browser.until(&format!("!document.querySelector('[role=status]').textContent.startsWith('{count} ')")).await;
    browser.shows("pod-77").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// Milliseconds until something that a person does is drawn, in the middle and at worst of many times.
async fn quick(browser: &mut Browser, count: usize) {
    let measure = "(async () => { \
         const frame = () => new Promise((next) => requestAnimationFrame(() => setTimeout(next))); \
         const times = async (values, act) => { const all = []; \
           for (const value of values) { await frame(); const start = performance.now(); act(value); await frame(); all.push(performance.now() - start); } \
           all.sort((a, b) => a - b); return { middle: Math.round(all[all.length >> 1]), worst: Math.round(all.at(-1)) }; }; \
         const field = document.querySelector('main input[type=search]'); \
         const type = (text) => { field.value = text; field.dispatchEvent(new Event('input')); }; \
         const grid = document.querySelector('.grid'); \
         const keystroke = await times(['p', 'po', 'pod', 'pod-', 'pod-1', 'pod-12', 'pod-1', 'pod-', 'pod', 'po', 'p', ''], type); \
         const scroll = await times([...Array(20).keys()].map((step) => step * grid.scrollHeight / 20), (top) => { grid.scrollTop = top; }); \
         const headers = [...document.querySelectorAll('.grid-head button')]; \
         const sort = await times([0, 1, 2, 3, 0, 0], (column) => headers[column].click()); \
         grid.scrollTop = 0; headers[0].click(); return { keystroke, scroll, sort }; })()";
    let measured = browser.evaluate(measure).await;
    println!("{count} pods, milliseconds until it is drawn: {measured}");
    // A busy host is slower than the figures, but not by this much.
    for act in ["keystroke", "scroll", "sort"] {
        assert!(measured[act]["middle"].as_u64().is_some_and(|middle| middle < 1000), "{act}: {measured}");
    }
}
