//! The part of a support bundle that the API server knows.

use std::time::Duration;

use anyhow::Context as _;
use http::Request;
use knarr_client::kube::Client;
use serde_json::Value;

use super::{Bundle, Redactor};

/// How long one request may take: a cluster that needs support may not respond.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Nodes whose own pages are read.
const MAX_NODES: usize = 50;

/// Pages of the API server that are text.
const PAGES: [(&str, &str); 5] = [
    ("version.json", "/version"),
    ("livez.txt", "/livez?verbose"),
    ("readyz.txt", "/readyz?verbose"),
    ("metrics.txt", "/metrics"),
    ("journal.jsonl", crate::journal::PATH),
];

/// Lists of objects. Secrets are not among them; of ConfigMaps the data are removed.
const LISTS: [&str; 40] = [
    "/api/v1/nodes",
    "/api/v1/namespaces",
    "/api/v1/pods",
    "/api/v1/events",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/serviceaccounts",
    "/api/v1/persistentvolumes",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/replicationcontrollers",
    "/api/v1/resourcequotas",
    "/api/v1/limitranges",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/apps/v1/daemonsets",
    "/apis/batch/v1/jobs",
    "/apis/batch/v1/cronjobs",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/ingresses",
    "/apis/networking.k8s.io/v1/ingressclasses",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/node.k8s.io/v1/runtimeclasses",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/apiregistration.k8s.io/v1/apiservices",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
];

/// Reads everything that the user may read.
pub async fn collect_cluster(bundle: &mut Bundle, client: &Client, redactor: &Redactor) {
    for (name, path) in PAGES {
        match get(client, path).await {
            Ok(text) => bundle.add(format!("cluster/{name}"), redactor.text(&text)),
            Err(error) => bundle.fail(path, &error, redactor),
        }
    }
    for path in LISTS {
        let name = format!("cluster/objects/{}.json", path.rsplit('/').next().unwrap_or_default());
        match list(client, path, redactor).await {
            Ok(text) => bundle.add(name, text),
            Err(error) => bundle.fail(path, &error, redactor),
        }
    }
    collect_nodes(bundle, client, redactor).await;
}

async fn collect_nodes(bundle: &mut Bundle, client: &Client, redactor: &Redactor) {
    let names = match nodes(client).await {
        Ok(names) => names,
        Err(error) => return bundle.fail("the names of nodes", &error, redactor),
    };
    for name in names.iter().take(MAX_NODES) {
        for page in ["configz", "healthz", "metrics", "stats/summary"] {
            let path = format!("/api/v1/nodes/{name}/proxy/{page}");
            match get(client, &path).await {
                Ok(text) => {
                    bundle.add(format!("cluster/nodes/{name}/{}.txt", page.replace('/', "-")), redactor.text(&text))
                }
                Err(error) => bundle.fail(&path, &error, redactor),
            }
        }
    }
}

async fn nodes(client: &Client) -> anyhow::Result<Vec<String>> {
    let list: Value = serde_json::from_str(&get(client, "/api/v1/nodes").await?).context("cannot parse the nodes")?;
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    Ok(items.filter_map(|node| node.pointer("/metadata/name")?.as_str().map(str::to_owned)).collect())
}

async fn list(client: &Client, path: &str, redactor: &Redactor) -> anyhow::Result<String> {
    let mut list: Value = serde_json::from_str(&get(client, path).await?).context("cannot parse the response")?;
    redactor.object(&mut list);
    Ok(serde_json::to_string_pretty(&list)?)
}

/// Reads a page of the API server.
pub async fn get(client: &Client, path: &str) -> anyhow::Result<String> {
    let request = Request::get(path).body(Vec::new())?;
    let response = tokio::time::timeout(TIMEOUT, client.request_text(request)).await;
    Ok(response.with_context(|| format!("no response within {} s", TIMEOUT.as_secs()))??)
}
