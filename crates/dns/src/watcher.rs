//! Keeps the directory in sync with the API. A change recomputes only its own Service.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::{Change, Informer, Informers};
use parking_lot::Mutex;

use crate::directory::{Directory, Endpoint, Kind, Port, Service};
use crate::name::Name;

const BY_SERVICE: &str = "service";

/// Starts watching. The returned future completes once all Services are known.
pub fn start(informers: &Informers, directory: Arc<Directory>) -> impl Future<Output = ()> + Send + 'static {
    let namespaces = informers.of::<v1::Namespace>();
    let services = informers.of::<v1::Service>();
    let slices = informers.of::<EndpointSlice>();
    let names = Arc::clone(&directory);
    namespaces.on_change(move |change| {
        let name = change.latest().metadata.name.as_deref().unwrap_or_default();
        names.set_namespace(name, !matches!(change, Change::Deleted(_)));
    });
    slices.add_index(BY_SERVICE, services_of_slice);
    let sync = Arc::new(DirectorySync {
        services: Arc::downgrade(&services),
        slices: Arc::downgrade(&slices),
        directory,
        sync_lock: Mutex::default(),
    });
    let service_sync = Arc::clone(&sync);
    services.on_change(move |change| {
        let meta = &change.latest().metadata;
        service_sync.sync(&key(meta.namespace.as_deref(), meta.name.as_deref()));
    });
    slices.on_change(move |change| {
        let mut keys: BTreeSet<String> = services_of_slice(change.latest()).into_iter().collect();
        keys.extend(change.previous().map(|slice| services_of_slice(slice)).unwrap_or_default());
        keys.iter().for_each(|key| sync.sync(key));
    });
    async move {
        namespaces.synced().await;
        services.synced().await;
        slices.synced().await;
        // Every subscriber holds the informers, so these live as long as the process.
        drop((namespaces, services, slices));
    }
}

fn key(namespace: Option<&str>, name: Option<&str>) -> String {
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}

fn services_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let labels = slice.metadata.labels.iter().flatten();
    let names = labels.filter(|(key, _)| *key == "kubernetes.io/service-name").map(|(_, name)| name);
    names.map(|name| format!("{namespace}/{name}")).collect()
}

/// The informers from which directory entries are computed.
struct DirectorySync {
    services: Weak<Informer<v1::Service>>,
    slices: Weak<Informer<EndpointSlice>>,
    directory: Arc<Directory>,
    /// Both informers report changes concurrently. Read and write happen under one lock, so that an older state cannot
    /// overwrite a newer one.
    sync_lock: Mutex<()>,
}

impl DirectorySync {
    /// Recomputes the directory entry of one Service.
    fn sync(&self, key: &str) {
        let (Some(services), Some(slices)) = (self.services.upgrade(), self.slices.upgrade()) else { return };
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        let is_known = {
            let _guard = self.sync_lock.lock();
            let service = services.get(namespace, name);
            let dns_entry = service.and_then(|service| dns_entry(&service, &slices.by_index(BY_SERVICE, key)));
            let is_known = dns_entry.is_some();
            self.directory.set(namespace, name, dns_entry);
            is_known
        };
        if is_known {
            let name = format!("{name}.{namespace}.svc");
            tracing::info!(target: "journey", step = "named", object = format!("services/{key}"), name);
        }
    }
}

/// The DNS entry of a Service; `None` if its name is not a valid DNS name.
fn dns_entry(service: &v1::Service, slices: &[Arc<EndpointSlice>]) -> Option<Service> {
    let spec = service.spec.as_ref()?;
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        Some(Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: protocol(port.protocol.as_deref()),
            number: u16::try_from(port.port).ok()?,
        })
    });
    let ports = ports.collect();
    if spec.type_.as_deref() == Some("ExternalName") {
        // An IP address cannot be the target of an alias.
        let target = spec.external_name.as_deref().filter(|text| text.parse::<IpAddr>().is_err())?;
        let target = Name::from_text(target)?;
        return Some(Service { kind: Kind::External(target), ports, endpoints: Vec::new() });
    }
    let addresses =
        spec.cluster_ips.iter().flatten().chain(spec.cluster_ip.iter().filter(|_| spec.cluster_ips.is_none()));
    let addresses: Vec<IpAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
    let is_headless = spec.cluster_ip.as_deref() == Some("None");
    if addresses.is_empty() && !is_headless {
        return None;
    }
    let kind = if is_headless { Kind::Headless } else { Kind::Addresses(addresses) };
    Some(Service { kind, ports, endpoints: endpoints(slices) })
}

/// Endpoints that are ready, or published before they are (their slices then mark them as ready).
fn endpoints(slices: &[Arc<EndpointSlice>]) -> Vec<Endpoint> {
    let mut found: Vec<Endpoint> = Vec::new();
    let mut known = HashSet::new();
    // Slices of one Service mostly have the same ports: queries look for a port once in each list.
    let mut lists: HashSet<Arc<[Port]>> = HashSet::new();
    for slice in slices {
        let ports: Arc<[Port]> = slice
            .ports
            .iter()
            .flatten()
            .filter_map(|port| {
                Some(Port {
                    name: port.name.clone().unwrap_or_default(),
                    protocol: protocol(port.protocol.as_deref()),
                    number: u16::try_from(port.port?).ok()?,
                })
            })
            .collect();
        let ports = lists.get(&ports).cloned().unwrap_or(ports);
        lists.insert(Arc::clone(&ports));
        for endpoint in slice.endpoints.iter().flatten() {
            if !endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true) {
                continue;
            }
            for address in endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok()) {
                let label = endpoint.hostname.clone().unwrap_or_else(|| dashed(address));
                if known.insert((label.clone(), address, ports.as_ptr())) {
                    found.push(Endpoint { label, address, ports: Arc::clone(&ports) });
                }
            }
        }
    }
    found.sort_by(|one, other| (one.address, &one.label).cmp(&(other.address, &other.label)));
    found
}

fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

fn protocol(text: Option<&str>) -> &'static str {
    match text {
        Some("UDP") => "udp",
        Some("SCTP") => "sctp",
        _ => "tcp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value, endpoints: Value) -> Option<Service> {
        let service = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap();
        let slice = json!({"metadata": {}, "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
        dns_entry(&service, &[Arc::new(serde_json::from_value(slice).unwrap())])
    }

    #[test]
    fn kinds_of_services_are_distinguished() {
        let none = json!([]);
        let address: IpAddr = [10, 96, 0, 1].into();
        for (spec, expected) in [
            (json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]}), Some(Kind::Addresses(vec![address]))),
            (json!({"clusterIP": "None", "clusterIPs": ["None"]}), Some(Kind::Headless)),
            (
                json!({"type": "ExternalName", "externalName": "Example.org"}),
                Some(Kind::External(Name::from_text("example.org").unwrap())),
            ),
            (json!({"type": "ExternalName", "externalName": "10.0.0.1"}), None),
            (json!({"clusterIP": ""}), None),
        ] {
            assert_eq!(read(spec, none.clone()).map(|service| service.kind), expected);
        }
    }

    #[test]
    fn only_ready_endpoints_are_named() {
        let endpoints = json!([
            {"addresses": ["10.0.0.1"], "hostname": "web-0", "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"], "conditions": {}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false}},
        ]);
        let service = read(json!({"clusterIP": "None"}), endpoints).unwrap();
        let labels: Vec<&str> = service.endpoints.iter().map(|endpoint| endpoint.label.as_str()).collect();
        assert_eq!(labels, ["web-0", "10-0-0-2"]);
    }
}
