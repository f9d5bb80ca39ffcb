//! Timelines across all nodes of a cluster, diagnoses, and few log lines while the server is away.

use std::collections::BTreeSet;

use serde_json::Value;

use super::harness::{self, Cluster, IMAGE};

fn manifest() -> String {
    format!(
        r#"
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings}}
data: {{greeting: hello}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: web}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 5
      volumes: [{{name: settings, configMap: {{name: settings}}}}]
      containers:
      - name: web
        image: {IMAGE}
        command: ["sh", "-c", "echo ok > /www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait"]
        readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1}}
        lifecycle: {{postStart: {{exec: {{command: ["true"]}}}}, preStop: {{exec: {{command: ["true"]}}}}}}
        volumeMounts: [{{name: settings, mountPath: /settings}}]
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080}}]
"#
    )
}

fn knarr(cluster: &Cluster, words: &[&str]) -> Result<String, String> {
    let data = cluster.nodes[0].data.to_string_lossy().into_owned();
    let mut command = cluster.nodes[0].knarr(&[words, &["--data-dir", &data]].concat());
    let output = command.env_remove("KUBECONFIG").output().expect("knarr runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The steps of a section of the timeline, as `node component: message`.
fn steps(cluster: &Cluster, object: &str, chapter: usize) -> BTreeSet<String> {
    let timeline = knarr(cluster, &["journey", object, "-o", "json"]).unwrap_or_default();
    let timeline: Value = serde_json::from_str(&timeline).unwrap_or_default();
    let moments = timeline["chapters"][chapter]["moments"].as_array().cloned().unwrap_or_default();
    let text = |moment: &Value, field: &str| moment[field].as_str().unwrap_or_default().to_owned();
    let line =
        |moment: &Value| format!("{} {}: {}", text(moment, "process"), text(moment, "part"), text(moment, "what"));
    moments.iter().map(line).collect()
}

#[test]
fn the_timeline_covers_both_nodes() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(2);
    cluster.apply(&manifest());
    cluster.wait_for("a pod on each node", || cluster.ready_pods("app=web") == 2);
    for (server, node) in [("node-1", "node-1"), ("node-1", "node-2")] {
        let expected = [
            format!("{server} api: created by kubectl"),
            format!("{server} controllers: reconciled by the daemonset controller"),
            format!("{server} scheduler: bound to {node}"),
            format!("{node} kubelet: accepted by the kubelet of {node}"),
            format!("{node} kubelet: volume settings mounted (configMap settings)"),
            format!("{node} kubelet: image {IMAGE} for web was there"),
            format!("{node} kubelet: container web created"),
            format!("{node} kubelet: container web started"),
            format!("{node} kubelet: postStart hook of web run"),
            format!("{node} kubelet: Readiness probe of web passed"),
            format!("{server} controllers: endpoint of web published, ready"),
            format!("{node} proxy: Service web programmed on {node}"),
            format!("{node} dns: web.default.svc resolvable on {node}"),
        ];
        let mut missing = Vec::new();
        cluster.wait_for(&format!("the timeline of {node}"), || {
            let steps = steps(&cluster, "daemonset/web", 0);
            missing = expected.iter().filter(|line| !steps.contains(*line)).cloned().collect();
            if !missing.is_empty() {
                eprintln!("not recorded yet: {missing:#?}");
            }
            missing.is_empty()
        });
    }
    let now = steps(&cluster, "ds/web", 0);
    let looked = now.iter().find(|line| line.contains("checked 2 nodes: 1 fit"));
    let looked = looked.unwrap_or_else(|| panic!("why others did not fit is missing: {now:#?}"));
    assert!(looked.contains("others: 1 "), "{looked}");

    let page = knarr(&cluster, &["journey", "daemonset", "web", "-o", "html"]).expect("a page");
    assert!(page.contains("where the time"), "{page}");
    assert_eq!(knarr(&cluster, &["why", "service/web"]).expect("a diagnosis"), "service/web: no problem found\n");
    let unknown = knarr(&cluster, &["why", "servcie/web"]).expect_err("no such kind");
    assert!(unknown.contains("did you mean \"service\"?"), "{unknown}");

    cluster.kubectl(&["delete", "daemonset", "web"]);
    cluster.wait_for("the pods to go", || cluster.kubectl(&["get", "pods", "-o", "name"]).is_empty());
    cluster.wait_for("the timeline of the deletion", || {
        let steps = steps(&cluster, "daemonset/web", 1);
        ["node-1 kubelet: preStop hook of web run", "node-2 kubelet: container web exited with 0 (Completed)"]
            .iter()
            .all(|line| steps.iter().any(|own| own.starts_with(line)))
    });

    server_goes_away_and_returns(&mut cluster);
}

/// One line when the server goes away, one when it is back.
fn server_goes_away_and_returns(cluster: &mut Cluster) {
    let before = cluster.nodes[1].log().len();
    let since = |cluster: &Cluster| cluster.nodes[1].log()[before..].to_owned();
    cluster.nodes[0].stop();
    harness::wait_for("the node to miss its server", || since(cluster).contains("the API server cannot be reached"));
    cluster.nodes[0].start();
    harness::wait_for("the node to find its server", || since(cluster).contains("the API server responds again"));
    cluster.wait_for_nodes(2);
    let log = since(cluster);
    // The client library is silent unless its log is enabled, as in these tests.
    let is_warning = |line: &&str| (line.contains("WARN") || line.contains("ERROR")) && !line.contains(" kube_");
    let warnings: Vec<&str> = log.lines().filter(is_warning).collect();
    // The kubelet, the network, the storage components and the tunnels have clients of their own, and a request of each may be
    // served after one that was not: twice four lines at most, however long the server is away.
    assert!((1..=8).contains(&warnings.len()), "{}", warnings.join("\n"));
    assert!(warnings.iter().all(|line| line.contains("the API server cannot be reached")), "{}", warnings.join("\n"));
}
