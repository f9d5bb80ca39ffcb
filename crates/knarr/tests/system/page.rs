//! The web page with real containers: logs of pods and workloads that try to be markup, a shell, a port as a link, and charts.

#[path = "../control_plane/support/browser.rs"]
#[allow(dead_code)]
mod browser;

use std::time::Duration;

use browser::Browser;
use serde_json::json;

use crate::harness::{self, Switch, TestHost, wait_for};

const TIMEOUT: Duration = Duration::from_secs(120);

/// The log of the pod contains markup and escape sequences. The Deployment and the CronJob have logs of several pods; a container
/// that exits has an earlier log.
const OBJECTS: &str = r#"
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
    args: ['while true; do printf "line <img src=x onerror=window.attacked=1> \033[31m\033]0;title\007red\033]8;;javascript:window.attacked=1\007link\033]8;;\007 \302\23331m\342\200\256 </div><script>window.attacked=1</script>\n"; sleep 1; done']
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: greeter}
spec:
  replicas: 2
  selector: {matchLabels: {app: greeter}}
  template:
    metadata: {labels: {app: greeter}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: greeter
        image: 'busybox:1'
        imagePullPolicy: Never
        command: [sh, -c, 'number=0; while true; do number=$((number+1)); echo "greeting $number of $HOSTNAME"; sleep 1; done']
---
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  containers:
  - name: again
    image: 'busybox:1'
    imagePullPolicy: Never
    command: [sh, -c, 'if test -e /data/once; then echo "the second run"; sleep 100000; fi; touch /data/once; echo "the first run"; exit 3']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: report}
spec:
  schedule: '0 0 1 1 *'
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: report
            image: 'busybox:1'
            imagePullPolicy: Never
            command: [sh, -c, 'echo "a report of $HOSTNAME"']
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
    std::fs::write(directory.join("objects.yaml"), OBJECTS).expect("a manifest");
    kubectl(&["apply", "-f", &directory.join("objects.yaml").to_string_lossy()]);
    kubectl(&["create", "job", "first", "--from=cronjob/report"]);
    wait_for("the pod", || kubectl(&["get", "pod", "web"]).contains("2/2"));
    kubectl(&["rollout", "status", "deployment/greeter", "--timeout=120s"]);
    kubectl(&["wait", "--for=condition=Complete", "job/first", "--timeout=120s"]);
    let link = knarr(&["ui"]);
    let kubectl = |arguments: &[&str]| {
        let mut command = std::process::Command::new("kubectl");
        command.args(arguments).env("KUBECONFIG", directory.join("config")).env("HOME", directory);
        output(command)
    };
    host.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(tour(&link, &kubectl));
    });

    // One screen, on the only server of its cluster.
    let status = knarr(&["status", "--data-dir", &format!("{clusters}/page/node-1")]);
    for part in ["checks pass", "node-1", "objects", "authority: valid for", "Last snapshot: none", "Problems"] {
        assert!(status.contains(part), "{part} is not in:\n{status}");
    }
}

/// kubectl, with its arguments.
type Kubectl<'a> = &'a dyn Fn(&[&str]) -> String;

async fn tour(link: &str, kubectl: Kubectl<'_>) {
    let mut browser = Browser::start().await;
    browser.open(link).await;
    browser.until("document.querySelector('#nav a')").await;
    logs_of_a_pod(&mut browser).await;
    logs_of_workloads(&mut browser, kubectl).await;
    shell(&mut browser).await;
    charts(&mut browser).await;
    port(&mut browser).await;
    assert_eq!(browser.errors, Vec::<String>::new());
}

async fn logs_of_a_pod(browser: &mut Browser) {
    browser.go("object/pods/default/web/logs").await;
    browser.until("document.querySelector('.log')?.innerText.includes('<img src=x')").await;
    let markup = "document.querySelectorAll('.log :not(div):not(span):not(mark)').length";
    assert_eq!(browser.evaluate(markup).await, json!(0));
    assert_eq!(browser.evaluate("window.attacked").await, json!(null));
    let escapes = "/[\\u001b\\u0007\\u009b\\u202e]/.test(document.querySelector('.log').textContent)";
    assert_eq!(browser.evaluate(escapes).await, json!(false));
    browser.enter("main input[type=search]", "red").await;
    browser.until("document.querySelectorAll('.log mark').length > 0").await;
    assert_eq!(browser.unnamed_controls().await, Vec::<String>::new(), "the logs");

    // The log of the container before the last restart, in place of that of the one that runs.
    browser.go("object/pods/default/again/logs").await;
    browser.until("document.querySelector('.log')?.innerText.includes('the second run')").await;
    let first = "document.querySelector('.log').innerText.includes('the first run')";
    assert_eq!(browser.evaluate(first).await, json!(false));
    browser.evaluate("[...document.querySelectorAll('main label')].find((one) => one.textContent.includes('previous')).querySelector('input').click()").await;
    browser.until(first).await;
    browser.until("!document.querySelector('.log').innerText.includes('the second run')").await;
}

async fn logs_of_workloads(browser: &mut Browser, kubectl: Kubectl<'_>) {
    let pods = |label: &str| -> Vec<String> {
        let path = "-o=jsonpath={.items[*].metadata.name}";
        kubectl(&["get", "pods", "-l", label, path]).split_whitespace().map(str::to_owned).collect()
    };
    browser.go("object/deployments.apps/default/greeter/logs").await;
    for pod in pods("app=greeter") {
        browser.until(&format!("document.querySelector('.log')?.innerText.includes('of {pod}')")).await;
    }
    browser.shows("2 containers").await;
    // It follows: lines that are written later come, and are in view.
    let lines = "document.querySelectorAll('.log > div').length";
    let at_end = "(() => { const box = document.querySelector('.log'); return box.scrollTop + box.clientHeight >= box.scrollHeight - 30; })()";
    let before = browser.evaluate(lines).await.as_u64().expect("a number");
    browser.until(&format!("{lines} > {before} + 3 && {at_end}")).await;
    // Who searches sees the lines that match, later ones too.
    browser.enter("main input[type=search]", "GREETING 1").await;
    browser.until("[...document.querySelectorAll('.log > div')].every((line) => line.querySelector('mark')?.textContent === 'greeting 1')").await;
    browser.shows("lines match").await;
    browser.enter("main input[type=search]", "").await;
    // Pods that start later belong to it, too.
    let known = pods("app=greeter");
    kubectl(&["scale", "deployment", "greeter", "--replicas=3"]);
    kubectl(&["rollout", "status", "deployment/greeter", "--timeout=120s"]);
    let late = pods("app=greeter").into_iter().find(|pod| !known.contains(pod)).expect("another pod");
    browser.until(&format!("document.querySelector('.log').innerText.includes('of {late}')")).await;

    // A Job's log, and that of a CronJob: those of all its Jobs.
    browser.go("object/jobs.batch/default/first/logs").await;
    browser.until("document.querySelector('.log')?.innerText.includes('a report of first-')").await;
    browser.go("object/cronjobs.batch/default/report/logs").await;
    browser.until("document.querySelector('.log')?.innerText.includes('a report of first-')").await;
    kubectl(&["create", "job", "second", "--from=cronjob/report"]);
    browser.until("document.querySelector('.log').innerText.includes('a report of second-')").await;
}

async fn shell(browser: &mut Browser) {
    browser.go("object/pods/default/web/shell").await;
    browser.until("document.querySelector('select[aria-label=Container]')").await;
    browser.evaluate("document.querySelector('select[aria-label=Container]').value = 'noisy'").await;
    browser.click("Open").await;
    browser.until("document.querySelector('main [role=status]').textContent === 'connected'").await;
    browser
        .evaluate("for (const key of [...'echo answer-$((6*7))', 'Enter']) document.querySelector('.terminal').dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))")
        .await;
    browser.until("document.querySelector('.terminal').innerText.includes('answer-42')").await;
    // The keyboard is no prisoner of the terminal, which needs the Tab key itself.
    browser.press("Tab", 0).await;
    let focused = "document.activeElement.className";
    assert_eq!(browser.evaluate(focused).await, json!("terminal"));
    browser.press("Tab", 8).await;
    assert_eq!(browser.evaluate("document.activeElement.textContent").await, json!("Open"));
}

/// Usage as charts, with more points while the page is open.
async fn charts(browser: &mut Browser) {
    for (page, label) in [
        ("object/pods/default/web", "CPU of noisy"),
        ("object/deployments.apps/default/greeter", "Memory of all pods"),
        ("object/nodes/-/node-1", "Memory of node-1"),
    ] {
        browser.go(page).await;
        browser.until(&format!("document.querySelector('svg[aria-label=\"{label}\"] path')")).await;
        let amount = "[...document.querySelectorAll('.charts .dim')].some((one) => /^Memory [0-9.]+ [KMG]iB, at most/.test(one.textContent))";
        browser.until(amount).await;
    }
    let points = "document.querySelector('svg[aria-label=\"Memory of node-1\"] path:last-child').getAttribute('d').split('L').length";
    let before = browser.evaluate(points).await.as_u64().expect("a number");
    browser.until(&format!("{points} > {before}")).await;
    // The map of the cluster has them, too.
    browser.go("cluster").await;
    browser.shows("Memory in use:").await;
    browser.until("document.querySelector('[role=meter][aria-label=Memory]')?.getAttribute('aria-valuetext').includes('used')").await;
}

async fn port(browser: &mut Browser) {
    browser.go("object/pods/default/web").await;
    browser.click("Open in the browser").await;
    browser.until("document.querySelector('#messages a')").await;
    let link = "document.querySelector('#messages a')";
    let attributes = format!("[{link}.target, {link}.rel, document.activeElement === {link}]");
    assert_eq!(browser.evaluate(&attributes).await, json!(["_blank", "noopener noreferrer", true]));
    let path = browser.evaluate(&format!("{link}.getAttribute('href')")).await.as_str().expect("a path").to_owned();
    assert!(path.starts_with("/ui/forward/"), "{path}");
    // Where the browser allows no page that nobody asked for, the key opens it.
    browser.press("Enter", 0).await;
    let started = std::time::Instant::now();
    while !browser.addresses().await.iter().any(|address| address.ends_with(&path)) {
        assert!(started.elapsed() < TIMEOUT, "the port was not opened");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The page of the workload comes back, with an origin of its own.
    let fetched = format!(
        "fetch('{path}').then(async (page) => ({{ code: page.status, text: await page.text(), policy: page.headers.get('content-security-policy') }}))"
    );
    let page = browser.evaluate(&fetched).await;
    assert_eq!(page["code"], json!(200), "{page}");
    assert!(page["text"].as_str().is_some_and(|text| text.contains("It works!")), "{page}");
    let policy = page["policy"].as_str().unwrap_or_default();
    assert!(policy.contains("sandbox") && !policy.contains("allow-same-origin"), "{policy}");
    // It ends with the session.
    browser.click("Sign out").await;
    browser.shows("knarr ui").await;
    assert_eq!(browser.evaluate(&format!("fetch('{path}').then((page) => page.status)")).await, json!(404));
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
