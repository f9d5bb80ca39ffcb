//! `/metrics/resources`: what pods request and what limits them.

use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1::Pod;
use knarr_client::pod_resources::{self, Side};
use knarr_client::{Informer, pod};
use knarr_metrics::{Family, Gauge};
use parking_lot::Mutex;

const LABELS: &[&str] = &["namespace", "node", "pod", "priority", "resource", "scheduler", "unit"];

/// The pods of the scheduler that runs in this process.
static PODS: Mutex<Option<Weak<Informer<Pod>>>> = Mutex::new(None);

pub(crate) fn watch(pods: &Arc<Informer<Pod>>) {
    *PODS.lock() = Some(Arc::downgrade(pods));
}

/// The page; without pods if no scheduler runs here now.
pub fn page() -> String {
    let pods = PODS.lock().as_ref().and_then(Weak::upgrade);
    render(&pods.map(|pods| pods.list()).unwrap_or_default())
}

fn render(pods: &[Arc<Pod>]) -> String {
    let families = [
        ("kube_pod_resource_request", "[STABLE] What pods request of each resource.", Side::Requests),
        ("kube_pod_resource_limit", "[STABLE] What limits pods in each resource.", Side::Limits),
    ];
    let mut out = String::new();
    for (name, help, side) in families {
        let gauge = Gauge::new(name, help, LABELS);
        let all = pods.iter().filter(|pod| !is_terminal(pod)).flat_map(|pod| series(pod, side));
        let all: Vec<([String; 7], f64)> = all.collect();
        gauge.fill(all.iter().map(|(labels, value)| (labels.each_ref().map(String::as_str), *value)));
        gauge.write(&mut out);
    }
    out
}

/// A pod that is not scheduled is not terminal, whatever its phase.
fn is_terminal(each: &Pod) -> bool {
    let is_scheduled = each.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    is_scheduled && pod::is_terminal(each)
}

fn series(each: &Pod, side: Side) -> Vec<([String; 7], f64)> {
    let Some(spec) = &each.spec else { return Vec::new() };
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (namespace, name) = (text(&each.metadata.namespace), text(&each.metadata.name));
    let (node, scheduler) = (text(&spec.node_name), text(&spec.scheduler_name));
    let priority = spec.priority.map(|priority| priority.to_string()).unwrap_or_default();
    let amounts = pod_resources::of_pod(each, side).into_iter().filter(|(_, amount)| !amount.is_zero());
    let labelled = amounts.map(|(resource, amount)| {
        let unit = unit(&resource).to_owned();
        let labels =
            [namespace.clone(), node.clone(), name.clone(), priority.clone(), resource, scheduler.clone(), unit];
        (labels, amount.as_f64())
    });
    labelled.collect()
}

fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "storage" | "ephemeral-storage" => "bytes",
        other if other.starts_with("hugepages-") => "bytes",
        _ => "integer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_are_shown_with_what_they_need_at_once() {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}});
        let pod = |phase: &str| {
            let spec = json!({"nodeName": "n1", "schedulerName": "default-scheduler", "priority": 7,
                "containers": [container("500m"), container("250m")], "initContainers": [container("2")]});
            let value =
                json!({"metadata": {"name": "p", "namespace": "web"}, "spec": spec, "status": {"phase": phase}});
            Arc::new(serde_json::from_value::<Pod>(value).expect("a pod"))
        };
        let page = render(&[pod("Running")]);
        let labels = "namespace=\"web\",node=\"n1\",pod=\"p\",priority=\"7\"";
        let cpu = format!(
            "kube_pod_resource_request{{{labels},resource=\"cpu\",scheduler=\"default-scheduler\",unit=\"cores\"}} 2\n"
        );
        assert!(page.contains(&cpu), "{page}");
        assert!(
            page.contains("resource=\"memory\",scheduler=\"default-scheduler\",unit=\"bytes\"} 2.147483648e+09\n"),
            "{page}"
        );
        let differences = knarr_metrics::reference::differences("kube-scheduler", "/metrics/resources", &page, &[]);
        assert_eq!(differences, Vec::<String>::new());
        assert!(!render(&[pod("Succeeded")]).contains("pod="), "a finished pod needs nothing");
    }
}
