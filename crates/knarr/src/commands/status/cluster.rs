//! What the API server says about the cluster.

use std::time::Duration;

use anyhow::Context as _;
use http::Request;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use knarr_api::value::Read;
use knarr_client::kube::Client;
use serde_json::Value;

use super::section;
use crate::output::table;

/// How long one request may take: a cluster that is in trouble may not respond.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many problems are printed.
const MAX_PROBLEMS: usize = 10;

/// The status code and the text of a response.
async fn get(client: &Client, path: &str) -> anyhow::Result<(u16, String)> {
    let request = Request::get(path).body(Vec::new())?;
    let read = async {
        let response = client.send(request.map(Into::into)).await?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::Ok((code, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::time::timeout(TIMEOUT, read).await.with_context(|| format!("no response within {} s", TIMEOUT.as_secs()))?
}

async fn get_object(client: &Client, path: &str) -> anyhow::Result<Value> {
    let (code, text) = get(client, path).await?;
    let object: Value = serde_json::from_str(&text).with_context(|| format!("{path} gives no JSON"))?;
    anyhow::ensure!(code < 400, "{}", object.text(&["message"]));
    Ok(object)
}

/// Prints health, nodes and store. Fails if the API server does not respond.
pub async fn print(client: &Client, server: &str) -> anyhow::Result<()> {
    println!("Cluster at {server}");
    let version = get_object(client, "/version").await?;
    println!("Kubernetes {}", version.text(&["gitVersion"]));
    let health = get(client, "/readyz?verbose").await.map(|(code, text)| health(code, &text));
    print!("{}", section("Health", &health.unwrap_or_else(describe)));
    print!("{}", section("Nodes", &nodes(client).await.unwrap_or_else(describe)));
    let metrics = get(client, "/metrics").await.map(|(code, text)| store(code, &text));
    print!("{}", section("Store", &metrics.unwrap_or_else(describe)));
    Ok(())
}

fn describe(error: anyhow::Error) -> String {
    format!("{error:#}\n")
}

/// A summary of the health checks, and each one that fails.
fn health(code: u16, text: &str) -> String {
    let (passing, failing): (Vec<&str>, Vec<&str>) = text
        .lines()
        .filter(|line| line.starts_with("[+]") || line.starts_with("[-]"))
        .partition(|line| line.starts_with("[+]"));
    let failing: String = failing.iter().map(|line| format!("FAILS: {}\n", &line[3..])).collect();
    match passing.len() {
        0 if failing.is_empty() => format!("unknown: the server responds with code {code}\n"),
        count if failing.is_empty() => format!("ready; all {count} checks pass\n"),
        count => format!("{failing}{count} other checks pass\n"),
    }
}

async fn nodes(client: &Client) -> anyhow::Result<String> {
    let nodes = get_object(client, "/api/v1/nodes").await?;
    // Usage and sums are missing where the server does not have them.
    let usage = get_object(client, "/apis/metrics.k8s.io/v1beta1/nodes").await.unwrap_or_default();
    let sums = get_object(client, "/ui/requests").await.unwrap_or_default();
    let now = Timestamp::now();
    let rows: Vec<[String; 7]> = nodes.items(&["items"]).iter().map(|node| row(node, &usage, &sums, now)).collect();
    Ok(table(["NAME", "STATUS", "ROLES", "VERSION", "AGE", "CPU", "MEMORY"], &rows))
}

fn row(node: &Value, usage: &Value, sums: &Value, now: Timestamp) -> [String; 7] {
    let name = node.text(&["metadata", "name"]);
    let used = usage.items(&["items"]).iter().find(|one| one.text(&["metadata", "name"]) == name);
    let amounts = |resource: &str, scale: fn(f64) -> String| {
        let number = |text: &str| knarr_api::quantity::Quantity::parse(text).ok().map(|amount| scale(amount.as_f64()));
        let used = used.and_then(|used| number(used.text(&["usage", resource])));
        let requested = number(sums.text(&["nodes", name, "requests", resource]));
        let all = number(node.text(&["status", "allocatable", resource])).unwrap_or_default();
        match (used, requested) {
            (Some(used), Some(requested)) => format!("{used} used, {requested} requested of {all}"),
            (Some(used), None) => format!("{used} used of {all}"),
            (None, Some(requested)) => format!("{requested} requested of {all}"),
            (None, None) => all,
        }
    };
    let labels = node.fields(&["metadata", "labels"]).into_iter().flatten();
    let roles: Vec<&str> = labels.filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/")).collect();
    [
        name.to_owned(),
        status(node),
        roles.join(","),
        node.text(&["status", "nodeInfo", "kubeletVersion"]).to_owned(),
        age(node.text(&["metadata", "creationTimestamp"]), now),
        amounts("cpu", |cores| format!("{cores:.1}")),
        amounts("memory", |bytes| format!("{:.1} GiB", bytes / f64::from(1 << 30))),
    ]
}

/// `Ready`, or what is wrong with the node.
fn status(node: &Value) -> String {
    let conditions = node.items(&["status", "conditions"]);
    let ready = conditions.iter().find(|one| one.text(&["type"]) == "Ready").map(|one| one.text(&["status"]));
    let mut words = vec![if ready == Some("True") { "Ready" } else { "NotReady" }];
    let is_pressure = |one: &&Value| one.text(&["type"]) != "Ready" && one.text(&["status"]) == "True";
    words.extend(conditions.iter().filter(is_pressure).map(|one| one.text(&["type"])));
    if node.flag(&["spec", "unschedulable"]) == Some(true) {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

fn age(created: &str, now: Timestamp) -> String {
    let Ok(created) = created.parse::<Timestamp>() else { return String::new() };
    match now.duration_since(created).as_secs() {
        seconds if seconds < 120 => format!("{seconds}s"),
        seconds if seconds < 2 * 3600 => format!("{}m", seconds / 60),
        seconds if seconds < 48 * 3600 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / (24 * 3600)),
    }
}

/// Size and number of objects, from the server's metrics.
fn store(code: u16, text: &str) -> String {
    let value = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok()).unwrap_or_default();
    let sum = |names: &[&str]| {
        let is_it = |line: &&str| {
            names.iter().any(|name| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
        };
        let values: Vec<f64> = text.lines().filter(is_it).map(value).filter(|value| *value >= 0.0).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>())
    };
    if code >= 400 {
        return "you may not read the server's metrics\n".to_owned();
    }
    let mebibytes = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    let mut parts = Vec::new();
    parts.extend(sum(&["apiserver_storage_size_bytes"]).map(|bytes| format!("{} of objects", mebibytes(bytes))));
    parts.extend(sum(&["etcd_server_quota_backend_bytes"]).map(|bytes| format!("limit {}", mebibytes(bytes))));
    let objects = sum(&["apiserver_resource_objects"]).or_else(|| sum(&["apiserver_storage_objects"]));
    parts.extend(objects.map(|count| format!("{count} objects")));
    parts.extend(sum(&["process_resident_memory_bytes"]).map(|bytes| format!("server's memory {}", mebibytes(bytes))));
    let mut line = format!("{}\n", parts.join(", "));
    if sum(&["knarr_store_space_exceeded"]).is_some_and(|exceeded| exceeded > 0.0) {
        line += "FULL: objects cannot be created until some are deleted or the limit is raised\n";
    }
    line
}

/// Prints the diagnosis of what is not as it should be, as the page of the cluster shows it.
pub async fn print_problems(client: &Client) {
    let text = match get_object(client, "/ui/problems").await {
        Ok(found) => problems(&found),
        Err(error) => format!("cannot look for problems: {error:#}\n"),
    };
    print!("{}", section("Problems", &text));
}

fn problems(found: &Value) -> String {
    let all = found.items(&["problems"]);
    if all.is_empty() {
        return format!("none in {} objects\n", found.integer(&["examined"]).unwrap_or_default());
    }
    let mut text = String::new();
    for problem in all.iter().take(MAX_PROBLEMS) {
        let object = problem.at(&["object"]);
        let (kind, namespace) = (object.text(&["kind"]).to_lowercase(), object.text(&["namespace"]));
        let within = if namespace.is_empty() { String::new() } else { format!(" -n {namespace}") };
        let name = format!("{kind}/{}{within}", object.text(&["name"]));
        let cause = problem.items(&["findings"]).first().map(|finding| finding.text(&["cause"])).unwrap_or_default();
        text += &format!("{name}: {cause}\n");
    }
    if all.len() > MAX_PROBLEMS {
        text += &format!("and {} more\n", all.len() - MAX_PROBLEMS);
    }
    text + "`knarr why KIND/NAME` gives evidence and a fix; `knarr ui` shows all\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn health_names_what_fails() {
        for (code, text, expected) in [
            (200, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n", "ready; all 2 checks pass\n"),
            (
                500,
                "[+]ping ok\n[-]etcd failed: reason withheld\n",
                "FAILS: etcd failed: reason withheld\n1 other checks pass\n",
            ),
            (403, "{\"kind\":\"Status\"}", "unknown: the server responds with code 403\n"),
        ] {
            assert_eq!(health(code, text), expected);
        }
    }

    #[test]
    fn a_node_shows_its_conditions_and_what_is_used_of_it() {
        let node = json!({
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"node-role.kubernetes.io/control-plane": ""}},
            "spec": {"unschedulable": true},
            "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}, "nodeInfo": {"kubeletVersion": "v1"},
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]},
        });
        let usage = json!({"items": [{"metadata": {"name": "a"}, "usage": {"cpu": "250m", "memory": "1Gi"}}]});
        let sums = json!({"nodes": {"a": {"requests": {"cpu": "1500m", "memory": null}}}});
        let shown = row(&node, &usage, &sums, "2026-01-01T03:00:00Z".parse().unwrap());
        assert_eq!(
            shown,
            [
                "a",
                "Ready,DiskPressure,SchedulingDisabled",
                "control-plane",
                "v1",
                "3h",
                "0.2 used, 1.5 requested of 2.0",
                "1.0 GiB used of 4.0 GiB"
            ]
        );
    }

    #[test]
    fn the_store_is_read_from_metrics() {
        let text = "# HELP apiserver_storage_size_bytes x\napiserver_storage_size_bytes{a=\"b\"} 2097152\n\
                    apiserver_storage_objects{resource=\"pods\"} 3\napiserver_storage_objects{resource=\"nodes\"} 1\n\
                    apiserver_storage_objects_other 9\nknarr_store_space_exceeded 1\n";
        let shown = store(200, text);
        assert!(shown.starts_with("2.0 MiB of objects, 4 objects\nFULL"), "{shown}");
        assert!(store(403, "").contains("may not"));
    }

    #[test]
    fn problems_are_named_with_their_cause() {
        assert_eq!(problems(&json!({"problems": [], "examined": 7})), "none in 7 objects\n");
        let one =
            json!({"object": {"kind": "Pod", "namespace": "a", "name": "web"}, "findings": [{"cause": "it is stuck"}]});
        let text = problems(&json!({"problems": vec![one; 12]}));
        assert!(text.starts_with("pod/web -n a: it is stuck\n") && text.contains("and 2 more"), "{text}");
    }
}
