//! Allocates load balancer addresses. The plan is pure: all Services in, the changes of their statuses out.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use knarr_client::kube::api::{Api, Patch, PatchParams};
use knarr_client::kube::{self, Client};
use knarr_client::{EventRecorder, Informers};
use serde_json::json;
use tokio::sync::Notify;

use super::{addresses, is_ours};
use crate::capture::{self, Ports};
use crate::cidr::Cidr;
use crate::listening;
use crate::protocol::Protocol;

const RETRY: Duration = Duration::from_secs(2);
/// Processes start to listen without a notification: the node's ports are checked this often.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// Configuration of the address allocation.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Networks to allocate from, one address per Service.
    pub pool: Vec<Cidr>,
    /// Addresses of nodes, used when there is no pool: Services share them, each with its own ports.
    pub node_addresses: Vec<IpAddr>,
    /// TCP ports that the node itself needs on these addresses: a Service would capture their traffic.
    pub node_ports: Vec<u16>,
}

/// Allocates addresses until dropped. Must run once per cluster.
pub async fn run(informers: Informers, client: Client, settings: Settings) {
    let services = informers.of::<Service>();
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    services.add_index(CONCERNED, |service| concerns(service).then(String::new).into_iter().collect());
    services.on_change(move |change| {
        if concerns(change.latest()) || change.previous().is_some_and(|before| concerns(before)) {
            notify.notify_one();
        }
    });
    services.synced().await;
    let events = EventRecorder::new(client.clone(), "knarr-load-balancer", None);
    let mut reported = Reported::default();
    loop {
        let all = services.by_index(CONCERNED, "");
        let plan = plan(&all, &settings, &settings.host_ports());
        let mut failed = false;
        for (service, desired) in plan.changes {
            if let Err(error) = write(&client, &service, &desired).await {
                tracing::warn!(%error, "cannot write a load balancer address to the status");
                failed = true;
            }
        }
        for (service, Unassigned { reason, message }) in reported.unreported(plan.without) {
            events.warning(service.as_ref(), reason, message);
        }
        if failed {
            tokio::time::sleep(RETRY).await;
        } else {
            // Wakes up on a change or when the node's ports must be checked again.
            let _ = tokio::time::timeout(RESYNC_INTERVAL, changed.notified()).await;
        }
    }
}

/// Services that have or need an address, all under one key. Most of ten thousand do not.
const CONCERNED: &str = "load-balancer-pool";

fn concerns(service: &Service) -> bool {
    is_ours(service) || !addresses(service).is_empty()
}

struct Plan {
    changes: Vec<(Arc<Service>, Vec<IpAddr>)>,
    /// Services that get no address, and why.
    without: Vec<(Arc<Service>, Unassigned)>,
}

/// Reason and message of the event for a Service without an address.
struct Unassigned {
    reason: &'static str,
    message: String,
}

/// The hash of the message that was reported last about each Service without an address, by UID. A Service that has one, or is gone,
/// is forgotten: users create and delete Services without end.
#[derive(Default)]
struct Reported {
    messages: HashMap<String, u64>,
    hashes: RandomState,
}

impl Reported {
    /// Those whose message has not been reported.
    fn unreported(&mut self, without: Vec<(Arc<Service>, Unassigned)>) -> Vec<(Arc<Service>, Unassigned)> {
        let before = std::mem::take(&mut self.messages);
        let mut new = Vec::new();
        for (service, unassigned) in without {
            let (uid, hash) =
                (service.metadata.uid.clone().unwrap_or_default(), self.hashes.hash_one(&unassigned.message));
            if before.get(&uid) != Some(&hash) {
                new.push((service, unassigned));
            }
            self.messages.insert(uid, hash);
        }
        new
    }
}

/// `host_ports` are those on which the node itself listens.
fn plan(services: &[Arc<Service>], settings: &Settings, host_ports: &Ports) -> Plan {
    let mut allocations = Allocations { host_ports: host_ports.clone(), ..Allocations::default() };
    let mut services: Vec<&Arc<Service>> = services.iter().collect();
    // Older Services first; those that have an address keep it.
    services.sort_by_key(|service| {
        let meta = &service.metadata;
        (meta.creation_timestamp.as_ref().map(|time| time.0), meta.namespace.clone(), meta.name.clone())
    });
    let mut plan = Plan { changes: Vec::new(), without: Vec::new() };
    let mut waiting = Vec::new();
    for service in services {
        let held = addresses(service);
        match (is_ours(service), held.is_empty()) {
            (true, true) => waiting.push(service),
            (true, false)
                if held
                    .iter()
                    .all(|address| settings.knows(*address) && allocations.is_free(service, *address, settings)) =>
            {
                held.iter().for_each(|address| allocations.add(service, *address));
            }
            (true, false) => waiting.push(service),
            // A Service that is no longer a load balancer releases its address.
            (false, false) if is_plain(service) => plan.changes.push((Arc::clone(service), Vec::new())),
            _ => {}
        }
    }
    for service in waiting {
        let given = choose(service, settings, &allocations);
        if given.is_empty() {
            plan.without.push((Arc::clone(service), why_none(service, settings, &allocations)));
        }
        given.iter().for_each(|address| allocations.add(service, *address));
        if given != addresses(service) {
            plan.changes.push((Arc::clone(service), given));
        }
    }
    plan
}

impl Settings {
    fn knows(&self, address: IpAddr) -> bool {
        let is_node_s = self.node_addresses.contains(&address);
        if self.pool.is_empty() {
            return is_node_s;
        }
        // A node's address is never allocated, even if it is in the pool.
        !is_node_s && self.pool.iter().any(|network| network.contains(address))
    }

    /// Ports on which this node listens at the addresses that Services would share with it.
    fn host_ports(&self) -> Ports {
        let mut ports: Ports = self.node_ports.iter().map(|port| (Protocol::Tcp, *port)).collect();
        if self.pool.is_empty() {
            ports.extend(listening::ports(&self.node_addresses.iter().copied().collect()));
        }
        ports
    }
}

fn is_plain(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.type_.as_deref()).is_some_and(|kind| kind != "LoadBalancer")
        && service.metadata.deletion_timestamp.is_none()
}

/// Chooses one address for each family of the Service.
fn choose(service: &Service, settings: &Settings, allocations: &Allocations) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let families: Vec<bool> = match &spec.ip_families {
        Some(families) if !families.is_empty() => families.iter().map(|family| family == "IPv4").collect(),
        _ => vec![true],
    };
    let requested = spec.load_balancer_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
    let mut given = Vec::new();
    for is_ipv4 in families {
        let usable =
            |address: &IpAddr| address.is_ipv4() == is_ipv4 && allocations.is_free(service, *address, settings);
        if let Some(requested) = requested.filter(|requested| requested.is_ipv4() == is_ipv4) {
            given.extend(Some(requested).filter(|requested| settings.knows(*requested) && usable(requested)));
            continue;
        }
        let found = if settings.pool.is_empty() {
            settings.node_addresses.iter().copied().find(usable)
        } else {
            settings.pool.iter().filter(|network| network.is_ipv4() == is_ipv4).find_map(|network| {
                // Skip the network and broadcast addresses, unless there are no others.
                let (first, end) =
                    if network.is_ipv4() && network.size() > 2 { (1, network.size() - 1) } else { (0, network.size()) };
                let own = |address: &IpAddr| settings.knows(*address) && usable(address);
                (first..end.min(first + 65_536)).filter_map(|index| network.nth(index)).find(own)
            })
        };
        given.extend(found);
    }
    given
}

/// The event for a Service that gets no address: why, and what to do.
fn why_none(service: &Service, settings: &Settings, allocations: &Allocations) -> Unassigned {
    if settings.pool.is_empty()
        && let Some((protocol, port)) =
            ports(service).find(|(protocol, port)| allocations.is_host_port(protocol, *port))
    {
        let addresses = settings.node_addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        let message = format!(
            "port {port}/{protocol} is used by the node itself on {addresses}, which load balancers share with it; choose \
             another port, or give each load balancer an address of its own with --load-balancer-pool"
        );
        return Unassigned { reason: "HostPortInUse", message };
    }
    Unassigned { reason: "NoAddress", message: no_address(service, settings, allocations) }
}

fn no_address(service: &Service, settings: &Settings, allocations: &Allocations) -> String {
    let requested = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let pool = settings.pool.iter().map(Cidr::to_string).collect::<Vec<_>>().join(", ");
    if let Some(requested) = requested.filter(|text| !text.is_empty()) {
        let known = requested.parse().is_ok_and(|address| settings.knows(address));
        return match (known, pool.is_empty()) {
            (true, false) => {
                format!("spec.loadBalancerIP: {requested} belongs to another service; choose another one or none")
            }
            (false, false) => {
                format!("spec.loadBalancerIP: {requested} is not in the pool {pool}; choose one from it or none")
            }
            (_, true) => format!(
                "spec.loadBalancerIP: {requested} cannot be assigned; remove it, or configure a pool with \
                 --load-balancer-pool"
            ),
        };
    }
    if !pool.is_empty() {
        return format!(
            "no address is free in the pool {pool}, where {} are in use; delete a load balancer that is not needed, or \
             give the server more networks with --load-balancer-pool",
            allocations.owners.len()
        );
    }
    let addresses = settings.node_addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    let ports = ports(service).map(|(protocol, port)| format!("{protocol} {port}")).collect::<Vec<_>>().join(", ");
    format!(
        "not all of {ports} are free on {addresses}, which load balancers share with the server; choose other ports, or \
         give each load balancer an address of its own with --load-balancer-pool"
    )
}

#[derive(Default)]
struct Allocations {
    owners: HashMap<IpAddr, usize>,
    ports: BTreeMap<(IpAddr, String, i32), ()>,
    host_ports: Ports,
}

impl Allocations {
    /// An address from a pool belongs to one Service; a node's address is shared if the ports differ.
    fn is_free(&self, service: &Service, address: IpAddr, settings: &Settings) -> bool {
        if !settings.pool.is_empty() {
            return !self.owners.contains_key(&address);
        }
        ports(service).all(|(protocol, port)| {
            !self.is_host_port(&protocol, port) && !self.ports.contains_key(&(address, protocol, port))
        })
    }

    fn is_host_port(&self, protocol: &str, port: i32) -> bool {
        let protocol = Protocol::parse(Some(protocol));
        u16::try_from(port).map_or(true, |port| capture::is_host_port(protocol, port, &self.host_ports))
    }

    fn add(&mut self, service: &Service, address: IpAddr) {
        *self.owners.entry(address).or_default() += 1;
        for (protocol, port) in ports(service) {
            self.ports.insert((address, protocol, port), ());
        }
    }
}

fn ports(service: &Service) -> impl Iterator<Item = (String, i32)> + '_ {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()).into_iter().flatten();
    ports.map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.port))
}

async fn write(client: &Client, service: &Service, desired: &[IpAddr]) -> Result<(), kube::Error> {
    let meta = &service.metadata;
    let points: Vec<_> = desired.iter().map(|address| json!({"ip": address, "ipMode": "VIP"})).collect();
    let balancer = if points.is_empty() { json!({"ingress": null}) } else { json!({"ingress": points}) };
    let patch = json!({"metadata": {"uid": meta.uid}, "status": {"loadBalancer": balancer}});
    let api = Api::<Service>::namespaced(client.clone(), meta.namespace.as_deref().unwrap_or_default());
    let name = meta.name.as_deref().unwrap_or_default();
    match api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        // Deleted, or replaced by another of the same name: the next sync sees it.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests;
