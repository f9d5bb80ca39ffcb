//! Services and the pods behind them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_client::pod_resources::is_sidecar;
use knarr_client::selector::{Labels, Selector};
use knarr_client::{Change, Informer, pod};
use parking_lot::Mutex;

use super::Key;
use super::key::{name, namespace};

/// Index of services by namespace and the first term of their selector.
const BY_SELECTOR_TERM: &str = "selector-term";
/// Index of pods by namespace and each of their labels.
const BY_LABEL: &str = "label";

/// Label of what belongs to services without an address of their own.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

fn term(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}/{key}={value}")
}

pub fn index_services(services: &Informer<Service>) {
    services.add_index(BY_SELECTOR_TERM, |service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let first = selector.and_then(|selector| selector.iter().next());
        first.map(|(key, value)| term(namespace(service), key, value)).into_iter().collect()
    });
}

pub fn index_pods_by_label(pods: &Informer<Pod>) {
    pods.add_index(BY_LABEL, |pod| {
        let labels = pod.metadata.labels.iter().flatten();
        labels.map(|(key, value)| term(namespace(pod), key, value)).collect()
    });
}

/// Keys of the services that select pods with these labels.
pub fn services_selecting(services: &Informer<Service>, namespace: &str, labels: Option<&Labels>) -> Vec<Key> {
    let mut found = Vec::new();
    for (key, value) in labels.into_iter().flatten() {
        for service in services.by_index(BY_SELECTOR_TERM, &term(namespace, key, value)) {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            if selector.is_some_and(|selector| Selector::from_labels(selector).matches(labels)) {
                found.push(Key::of(&*service));
            }
        }
    }
    found
}

/// Pods with all of these labels, by name.
pub fn pods_labelled(pods: &Informer<Pod>, namespace: &str, labels: &Labels) -> Vec<Arc<Pod>> {
    let Some((key, value)) = labels.iter().next() else { return Vec::new() };
    let selector = Selector::from_labels(labels);
    let mut found = pods.by_index(BY_LABEL, &term(namespace, key, value));
    found.retain(|pod| selector.matches(pod.metadata.labels.as_ref()));
    found.sort_by(|a, b| name(&**a).cmp(name(&**b)));
    found
}

/// Keys of the services whose endpoints a pod's change may affect.
pub fn services_touched(services: &Informer<Service>, change: &Change<Pod>) -> Vec<Key> {
    let pod = change.latest();
    let Some(old) = change.previous() else {
        return services_selecting(services, namespace(&**pod), pod.metadata.labels.as_ref());
    };
    let labels_changed = old.metadata.labels != pod.metadata.labels || identity(old) != identity(pod);
    if !labels_changed && !matters(old, pod) {
        return Vec::new();
    }
    let mut keys = services_selecting(services, namespace(&**pod), pod.metadata.labels.as_ref());
    if labels_changed {
        keys.extend(services_selecting(services, namespace(&**old), old.metadata.labels.as_ref()));
    }
    keys
}

fn identity(pod: &Pod) -> Option<(Option<&String>, Option<&String>)> {
    pod.spec.as_ref().map(|spec| (spec.hostname.as_ref(), spec.subdomain.as_ref()))
}

fn matters(old: &Pod, new: &Pod) -> bool {
    let addresses = |pod: &Pod| pod.status.as_ref().and_then(|status| status.pod_ips.clone());
    old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || pod::is_ready(old) != pod::is_ready(new)
        || pod::is_terminal(old) != pod::is_terminal(new)
        || addresses(old) != addresses(new)
}

/// Whether a pod has an address and is running behind a service (or, if requested, has terminated).
pub fn belongs_in_endpoints(pod: &Pod, with_terminating: bool) -> bool {
    let status = pod.status.as_ref();
    let has_address = status.is_some_and(|status| {
        status.pod_ip.as_ref().is_some_and(|ip| !ip.is_empty())
            || status.pod_ips.as_ref().is_some_and(|ips| !ips.is_empty())
    });
    has_address && !pod::is_terminal(pod) && (with_terminating || !pod::is_terminating(pod))
}

/// The pod's hostname in the service's domain, if it has one.
pub fn hostname_for(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.as_ref().filter(|hostname| !hostname.is_empty())?;
    (spec.subdomain.as_deref() == service.metadata.name.as_deref()).then(|| hostname.clone())
}

/// The number of the pod's port that a service port targets.
pub fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let desired = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(desired)) => desired,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| is_sidecar(container));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let protocol = |protocol: &Option<String>| protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let found = ports
        .into_iter()
        .find(|known| known.name.as_ref() == Some(desired) && protocol(&known.protocol) == protocol(&port.protocol));
    found.map(|port| port.container_port)
}

/// Addresses of the pod in one family, in canonical form.
pub fn addresses(pod: &Pod, ipv6: bool) -> Vec<String> {
    let ips = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    let parsed = ips.filter_map(|ip| ip.ip.parse::<IpAddr>().ok());
    parsed.filter(|ip| ip.is_ipv6() == ipv6).map(|ip| ip.to_string()).collect()
}

pub fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ip.as_deref().is_none_or(|ip| ip.is_empty() || ip == "None")
}

/// Whether the families of a service include IPv4 and IPv6, the first one named first.
pub fn families(spec: &ServiceSpec) -> Vec<&'static str> {
    let named: Vec<&'static str> = spec
        .ip_families
        .iter()
        .flatten()
        .filter_map(|family| match family.as_str() {
            "IPv4" => Some("IPv4"),
            "IPv6" => Some("IPv6"),
            _ => None,
        })
        .collect();
    if !named.is_empty() {
        return named;
    }
    match spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()) {
        Some(IpAddr::V6(_)) => vec!["IPv6"],
        Some(IpAddr::V4(_)) => vec!["IPv4"],
        None => vec!["IPv4", "IPv6"],
    }
}

/// Records when a service's endpoints last changed, so that the delay until publication can be measured.
#[derive(Default)]
pub struct TriggerTimes {
    observed: Mutex<HashMap<Key, ObservedTimes>>,
}

#[derive(Default)]
struct ObservedTimes {
    service: Option<Timestamp>,
    pods: HashMap<String, Timestamp>,
}

impl TriggerTimes {
    /// The earliest change since the last call, if there was one.
    pub fn earliest(&self, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let created = service.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let ready = |each: &Pod| {
            pod::condition(each, "Ready").and_then(|ready| ready.last_transition_time.as_ref()).map(|at| at.0)
        };
        let times: HashMap<String, Timestamp> =
            pods.iter().filter_map(|pod| Some((name(&**pod).to_owned(), ready(pod)?))).collect();
        let mut all = self.observed.lock();
        let known = all.insert(Key::of(service), ObservedTimes { service: created, pods: times.clone() });
        let Some(known) = known else { return created };
        let changed = times.iter().filter(|(pod, at)| known.pods.get(*pod).is_none_or(|before| before < at));
        let service_changed = created.filter(|at| known.service.is_none_or(|before| before < *at));
        changed.map(|(_, at)| *at).chain(service_changed).min()
    }

    /// How long to batch changes of a service's pods: services with many pods change in bursts, and each sync reads all
    /// of them.
    pub fn batch_delay(&self, key: &Key) -> Duration {
        const MANY_PODS: usize = 100;
        const BATCH_DELAY: Duration = Duration::from_millis(20);
        let has_many = self.observed.lock().get(key).is_some_and(|observed| observed.pods.len() >= MANY_PODS);
        if has_many { BATCH_DELAY } else { Duration::ZERO }
    }

    pub fn forget(&self, key: &Key) {
        self.observed.lock().remove(key);
    }
}
