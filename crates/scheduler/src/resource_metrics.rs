//! `/metrics/resources`: what pods request and what limits them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_client::pod_resources::is_sidecar;
use knarr_client::{Informer, pod, quantity};
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

type Amounts = BTreeMap<String, f64>;
type Read = fn(&Container) -> Option<&BTreeMap<String, ApiQuantity>>;

fn render(pods: &[Arc<Pod>]) -> String {
    let families: [(&'static str, &'static str, Read); 2] = [
        ("kube_pod_resource_request", "[STABLE] What pods request of each resource.", |container| {
            container.resources.as_ref()?.requests.as_ref()
        }),
        ("kube_pod_resource_limit", "[STABLE] What limits pods in each resource.", |container| {
            container.resources.as_ref()?.limits.as_ref()
        }),
    ];
    let mut out = String::new();
    for (name, help, read) in families {
        let gauge = Gauge::new(name, help, LABELS);
        let all = pods.iter().filter(|pod| !is_terminal(pod)).flat_map(|pod| series(pod, read));
        let all: Vec<([String; 7], f64)> = all.collect();
        gauge.fill(all.iter().map(|(labels, value)| (labels.each_ref().map(String::as_str), *value)));
        gauge.write(&mut out);
    }
    out
}

/// A pod that is not scheduled is not terminal, whatever its phase.
fn is_terminal(each: &Pod) -> bool {
    let is_scheduled = each.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    is_scheduled && matches!(pod::phase(each), "Succeeded" | "Failed")
}

fn series(each: &Pod, read: Read) -> Vec<([String; 7], f64)> {
    let Some(spec) = &each.spec else { return Vec::new() };
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (namespace, name) = (text(&each.metadata.namespace), text(&each.metadata.name));
    let (node, scheduler) = (text(&spec.node_name), text(&spec.scheduler_name));
    let priority = spec.priority.map(|priority| priority.to_string()).unwrap_or_default();
    let amounts = total(spec, read).into_iter().filter(|(_, amount)| *amount != 0.0);
    let labelled = amounts.map(|(resource, amount)| {
        let unit = unit(&resource).to_owned();
        let labels =
            [namespace.clone(), node.clone(), name.clone(), priority.clone(), resource, scheduler.clone(), unit];
        (labels, amount)
    });
    labelled.collect()
}

/// What the containers need at once: all that run together, or an init container beside the sidecars before it.
fn total(spec: &k8s_openapi::api::core::v1::PodSpec, read: Read) -> Amounts {
    let of = |container: &Container| -> Amounts {
        read(container).into_iter().flatten().map(|(name, amount)| (name.clone(), value(name, amount))).collect()
    };
    let add = |sum: &mut Amounts, more: &Amounts| {
        for (name, amount) in more {
            *sum.entry(name.clone()).or_default() += amount;
        }
    };
    let mut running = Amounts::new();
    spec.containers.iter().for_each(|container| add(&mut running, &of(container)));
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        if is_sidecar(container) {
            add(&mut sidecars, &own);
            add(&mut running, &own);
            continue;
        }
        let mut at_once = sidecars.clone();
        add(&mut at_once, &own);
        for (name, amount) in at_once {
            let known = peak.entry(name).or_default();
            *known = known.max(amount);
        }
    }
    for (name, amount) in peak {
        let known = running.entry(name).or_default();
        *known = known.max(amount);
    }
    add(&mut running, &overhead(spec));
    running
}

fn overhead(spec: &k8s_openapi::api::core::v1::PodSpec) -> Amounts {
    spec.overhead.iter().flatten().map(|(name, amount)| (name.clone(), value(name, amount))).collect()
}

fn value(resource: &str, amount: &ApiQuantity) -> f64 {
    match resource {
        "cpu" => quantity::milli_value(amount) as f64 / 1e3,
        _ => quantity::value(amount) as f64,
    }
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
