//! The web page with real containers: logs that try to be markup, a shell, and a port as a link.

#[path = "../control_plane/support/browser.rs"]
#[allow(dead_code)]
mod browser;

use std::time::Duration;

use browser::Browser;
use serde_json::json;

use crate::harness::{self, Switch, TestHost, wait_for};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Its log contains markup and escape sequences, and its page a script that wants the session of whoever looks at it.
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: web
    image: 'nginx:1'
    imagePullPolicy: Never
    ports: [{containerPort: 80}]
  - name: noisy
    image: 'busybox:1'
    imagePullPolicy: Never
    command: [sh, -c]
    args: ['while true; do printf "line <img src=x onerror=window.attacked=1> \033[31m\033]0;title\007red\n"; sleep 1; done']
"#;

fn output(mut command: std::process::Command) -> String {
    let output = command.output().expect("the program is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn logs_shell_and_ports_work_and_run_nothing() {
    if !harness::is_possible() {
        return;
    }
    let _turn = harness::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let switch = Switch::new();
    let host = switch.plug(12);
    let knarr = |arguments: &[&str]| {
        let mut command = host.command(env!("CARGO_BIN_EXE_knarr"));
        command.args(arguments).env("KUBECONFIG", directory.join("config"));
        output(command)
    };
    let kubectl = |arguments: &[&str]| {
        let mut command = host.command("kubectl");
        command.args(arguments).env("KUBECONFIG", directory.join("config")).env("HOME", directory);
        output(command)
    };
    let clusters = directory.join("clusters").to_string_lossy().into_owned();
    let settings = directory.join("server.yaml");
    std::fs::write(&settings, "eviction-hard: memory.available<1Mi\nimage-gc-high-threshold: 100\n").expect("a file");
    let settings = settings.to_string_lossy().into_owned();
    knarr(&["cluster", "create", "page", "--offline", "--directory", &clusters, "--server-config", &settings]);
    let _removal = Removal(&host, clusters.clone());
    harness::write_images(&directory.join("images"));
    for image in ["nginx.tar", "busybox.tar"] {
        let archive = directory.join("images").join(image).to_string_lossy().into_owned();
        knarr(&["cluster", "load", "page", &archive, "--directory", &clusters]);
    }
    std::fs::write(directory.join("pod.yaml"), POD).expect("a manifest");
    kubectl(&["apply", "-f", &directory.join("pod.yaml").to_string_lossy()]);
    wait_for("the pod", || kubectl(&["get", "pod", "web"]).contains("2/2"));
    let link = knarr(&["ui"]);
    host.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(tour(&link));
    });

    // One screen, on the only server of its cluster.
    let status = knarr(&["status", "--data-dir", &format!("{clusters}/page/node-1")]);
    for part in ["checks pass", "node-1", "objects", "authority: valid for", "Last snapshot: none", "Problems"] {
        assert!(status.contains(part), "{part} is not in:\n{status}");
    }
}

async fn tour(link: &str) {
    let mut browser = Browser::start().await;
    browser.open(link).await;
    browser.until("document.querySelector('#nav a')").await;

    browser.evaluate("location.hash = '#/object/pods/default/web/logs'").await;
    browser.until("document.querySelector('.log')?.innerText.includes('<img src=x')").await;
    assert_eq!(browser.evaluate("document.querySelectorAll('.log img').length").await, json!(0));
    assert_eq!(browser.evaluate("window.attacked").await, json!(null));
    assert_eq!(
        browser.evaluate("/[\\u001b\\u0007]/.test(document.querySelector('.log').textContent)").await,
        json!(false)
    );
    browser
        .evaluate("(() => { const field = document.querySelector('main input[type=search]'); field.value = 'red'; field.dispatchEvent(new Event('input')); })()")
        .await;
    browser.until("document.querySelectorAll('.log mark').length > 0").await;
    assert_eq!(browser.unnamed_controls().await, Vec::<String>::new(), "the logs");

    browser.evaluate("location.hash = '#/object/pods/default/web/shell'").await;
    browser.until("document.querySelector('select[aria-label=Container]')").await;
    browser.evaluate("document.querySelector('select[aria-label=Container]').value = 'noisy'").await;
    browser.click("Open").await;
    browser.until("document.querySelector('main [role=status]').textContent === 'connected'").await;
    browser
        .evaluate("for (const key of [...'echo answer-$((6*7))', 'Enter']) document.querySelector('.terminal').dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))")
        .await;
    browser.until("document.querySelector('.terminal').innerText.includes('answer-42')").await;

    // The page of the workload comes back, with an origin of its own.
    let opened = "(async () => { const headers = { Authorization: `Bearer ${sessionStorage.getItem('knarr-session')}` }; \
        const created = await fetch('/ui/forward', { method: 'POST', headers, body: JSON.stringify({ namespace: 'default', resource: 'pods', name: 'web', port: '80' }) }); \
        const { path } = await created.json(); const page = await fetch(path); \
        return { code: page.status, text: await page.text(), policy: page.headers.get('content-security-policy'), path }; })()";
    let page = browser.evaluate(opened).await;
    assert_eq!(page["code"], json!(200), "{page}");
    assert!(page["text"].as_str().is_some_and(|text| text.contains("It works!")), "{page}");
    let policy = page["policy"].as_str().unwrap_or_default();
    assert!(policy.contains("sandbox") && !policy.contains("allow-same-origin"), "{policy}");
    // It ends with the session.
    browser.click("Sign out").await;
    browser.shows("knarr ui").await;
    let path = page["path"].as_str().expect("a path");
    assert_eq!(browser.evaluate(&format!("fetch('{path}').then((page) => page.status)")).await, json!(404));
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// Deletes the cluster whatever the test did.
struct Removal<'a>(&'a TestHost, String);

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut command = self.0.command(env!("CARGO_BIN_EXE_knarr"));
        let deleted = command.args(["cluster", "delete", "page", "--directory", &self.1]).output();
        if !deleted.is_ok_and(|output| output.status.success()) {
            eprintln!("the cluster was not deleted");
        }
    }
}
