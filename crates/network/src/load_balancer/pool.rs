//! Who gets which address. The plan is pure: all services in, the changes of their statuses out.

use std::collections::{BTreeMap, HashMap, HashSet};
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
use crate::proxy::Protocol;

const RETRY: Duration = Duration::from_secs(2);
/// Programs of the machine begin to listen without telling: their ports are looked at again this often.
const AGAIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Networks to give addresses from, one service an address.
    pub pool: Vec<Cidr>,
    /// Addresses of nodes, given when there is no pool: services share them, each with ports of its own.
    pub node_addresses: Vec<IpAddr>,
    /// TCP ports on which a node itself answers there: a service would take its traffic away.
    pub node_ports: Vec<u16>,
}

/// Gives addresses until dropped. To be run in one place of the cluster.
pub async fn run(informers: Informers, client: Client, settings: Settings) {
    let services = informers.of::<Service>();
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    services.on_change(move |_| notify.notify_one());
    services.synced().await;
    let events = EventRecorder::new(client.clone(), "knarr-load-balancer", None);
    let mut complained: HashSet<(String, String)> = HashSet::new();
    loop {
        let all = services.list();
        let plan = plan(&all, &settings, &settings.host_ports());
        let mut failed = false;
        for (service, wanted) in plan.changes {
            if let Err(error) = write(&client, &service, &wanted).await {
                tracing::warn!(%error, "a load balancer's address could not be written");
                failed = true;
            }
        }
        for (service, Without { reason, message }) in plan.without {
            if complained.insert((service.metadata.uid.clone().unwrap_or_default(), message.clone())) {
                events.warning(service.as_ref(), reason, &message);
            }
        }
        if failed {
            tokio::time::sleep(RETRY).await;
        } else {
            // Whichever comes first: a change, or the time to look at the machine's ports again.
            let _ = tokio::time::timeout(AGAIN, changed.notified()).await;
        }
    }
}

struct Plan {
    changes: Vec<(Arc<Service>, Vec<IpAddr>)>,
    /// Services for which nothing is free, and why.
    without: Vec<(Arc<Service>, Without)>,
}

/// What an event says of a service that gets no address.
struct Without {
    reason: &'static str,
    message: String,
}

/// `host_ports` are those on which the node itself answers.
fn plan(services: &[Arc<Service>], settings: &Settings, host_ports: &Ports) -> Plan {
    let mut taken = Taken { host_ports: host_ports.clone(), ..Taken::default() };
    let mut services: Vec<&Arc<Service>> = services.iter().collect();
    // Older services choose first, and those that have an address keep it.
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
                    .all(|address| settings.knows(*address) && taken.is_free(service, *address, settings)) =>
            {
                held.iter().for_each(|address| taken.take(service, *address));
            }
            (true, false) => waiting.push(service),
            // What was a load balancer and no longer is gives its address back.
            (false, false) if is_plain(service) => plan.changes.push((Arc::clone(service), Vec::new())),
            _ => {}
        }
    }
    for service in waiting {
        let given = choose(service, settings, &taken);
        if given.is_empty() {
            plan.without.push((Arc::clone(service), why_none(service, settings, &taken)));
        }
        given.iter().for_each(|address| taken.take(service, *address));
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
        // A pool that a node lies in does not make the node's address a load balancer's.
        !is_node_s && self.pool.iter().any(|network| network.contains(address))
    }

    /// Ports on which this node answers at the addresses that services would share with it.
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

/// One address for each family of the service.
fn choose(service: &Service, settings: &Settings, taken: &Taken) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let families: Vec<bool> = match &spec.ip_families {
        Some(families) if !families.is_empty() => families.iter().map(|family| family == "IPv4").collect(),
        _ => vec![true],
    };
    let asked = spec.load_balancer_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
    let mut given = Vec::new();
    for is_ipv4 in families {
        let usable = |address: &IpAddr| address.is_ipv4() == is_ipv4 && taken.is_free(service, *address, settings);
        if let Some(asked) = asked.filter(|asked| asked.is_ipv4() == is_ipv4) {
            given.extend(Some(asked).filter(|asked| settings.knows(*asked) && usable(asked)));
            continue;
        }
        let found = if settings.pool.is_empty() {
            settings.node_addresses.iter().copied().find(usable)
        } else {
            settings.pool.iter().filter(|network| network.is_ipv4() == is_ipv4).find_map(|network| {
                // A network's own address and its broadcast address are left alone, unless that is all there is.
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

/// What a user is told whose service gets no address, and what to do.
fn why_none(service: &Service, settings: &Settings, taken: &Taken) -> Without {
    if settings.pool.is_empty()
        && let Some((protocol, port)) = ports(service).find(|(protocol, port)| taken.is_host_port(protocol, *port))
    {
        let addresses = settings.node_addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        let message = format!(
            "port {port}/{protocol} is used by the node itself on {addresses}, which load balancers share with it; choose \
             another port, or give each load balancer an address of its own with --load-balancer-pool"
        );
        return Without { reason: "HostPortInUse", message };
    }
    Without { reason: "NoAddress", message: no_address(service, settings, taken) }
}

fn no_address(service: &Service, settings: &Settings, taken: &Taken) -> String {
    let asked = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let pool = settings.pool.iter().map(Cidr::to_string).collect::<Vec<_>>().join(", ");
    if let Some(asked) = asked.filter(|text| !text.is_empty()) {
        let known = asked.parse().is_ok_and(|address| settings.knows(address));
        return match (known, pool.is_empty()) {
            (true, false) => {
                format!("spec.loadBalancerIP: {asked} belongs to another service; take another one or none")
            }
            (false, false) => format!("spec.loadBalancerIP: {asked} is not of the pool {pool}; take one of it or none"),
            (_, true) => format!(
                "spec.loadBalancerIP: {asked} cannot be given; leave it out, or give the server a pool with \
                 --load-balancer-pool"
            ),
        };
    }
    if !pool.is_empty() {
        return format!(
            "no address is free in the pool {pool}, where {} are in use; delete a load balancer that is not needed, or \
             give the server more networks with --load-balancer-pool",
            taken.owners.len()
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
struct Taken {
    owners: HashMap<IpAddr, usize>,
    ports: BTreeMap<(IpAddr, String, i32), ()>,
    host_ports: Ports,
}

impl Taken {
    /// From a pool an address is for one service; a node's address is shared as long as ports differ.
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

    fn take(&mut self, service: &Service, address: IpAddr) {
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

async fn write(client: &Client, service: &Service, wanted: &[IpAddr]) -> Result<(), kube::Error> {
    let meta = &service.metadata;
    let points: Vec<_> = wanted.iter().map(|address| json!({"ip": address, "ipMode": "VIP"})).collect();
    let balancer = if points.is_empty() { json!({"ingress": null}) } else { json!({"ingress": points}) };
    let patch = json!({"metadata": {"uid": meta.uid}, "status": {"loadBalancer": balancer}});
    let api = Api::<Service>::namespaced(client.clone(), meta.namespace.as_deref().unwrap_or_default());
    let name = meta.name.as_deref().unwrap_or_default();
    match api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        // Gone, or another one of the same name: the next look sees it.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn service(name: &str, port: i32, extra: Value, held: &[&str]) -> Arc<Service> {
        let points: Vec<Value> = held.iter().map(|address| json!({"ip": address})).collect();
        let mut object = json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": port}]}, "status": {"loadBalancer": {"ingress": points}}});
        for (key, value) in extra.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn planned(services: &[Arc<Service>], settings: &Settings) -> (Vec<String>, usize) {
        let plan = plan(services, settings, &settings.host_ports());
        let shown = plan.changes.iter().map(|(service, given)| {
            let given: Vec<String> = given.iter().map(IpAddr::to_string).collect();
            format!("{}={}", service.metadata.name.as_deref().unwrap(), given.join("+"))
        });
        (shown.collect(), plan.without.len())
    }

    #[test]
    fn a_pool_gives_each_service_its_own() {
        let pool = Settings {
            pool: vec!["192.168.7.0/30".parse().unwrap(), "fd07::/126".parse().unwrap()],
            node_ports: vec![80],
            ..Settings::default()
        };
        let none = json!({});
        let both = json!({"ipFamilies": ["IPv4", "IPv6"]});
        for (services, expected, without) in [
            (
                vec![service("a", 80, none.clone(), &[]), service("b", 80, none.clone(), &["192.168.7.1"])],
                vec!["a=192.168.7.2"],
                0,
            ),
            (vec![service("a", 80, both, &[])], vec!["a=192.168.7.1+fd07::"], 0),
            (vec![service("a", 80, json!({"loadBalancerIP": "192.168.7.2"}), &[])], vec!["a=192.168.7.2"], 0),
            (vec![service("a", 80, json!({"loadBalancerIP": "10.0.0.1"}), &[])], vec![], 1),
            (vec![service("a", 80, json!({"loadBalancerClass": "example.org/x"}), &[])], vec![], 0),
            (vec![service("a", 80, json!({"type": "ClusterIP"}), &["192.168.7.1"])], vec!["a="], 0),
            (vec![service("a", 80, none.clone(), &["10.9.9.9"])], vec!["a=192.168.7.1"], 0),
            (
                vec![
                    service("a", 80, none.clone(), &["192.168.7.1"]),
                    service("b", 80, none.clone(), &["192.168.7.2"]),
                    service("c", 80, none, &[]),
                ],
                vec![],
                1,
            ),
        ] {
            assert_eq!(planned(&services, &pool), (expected.into_iter().map(str::to_owned).collect(), without));
        }
    }

    #[test]
    fn who_gets_nothing_is_told_why() {
        let pool = vec!["192.168.7.0/30".parse().unwrap()];
        let node_addresses = vec!["192.168.1.1".parse().unwrap()];
        let with = Settings { pool, ..Settings::default() };
        let without = Settings { node_addresses, node_ports: vec![80], ..Settings::default() };
        let held =
            || vec![service("a", 80, json!({}), &["192.168.7.1"]), service("b", 80, json!({}), &["192.168.7.2"])];
        for (settings, before, spec, said) in [
            (&with, held(), json!({}), "no address is free in the pool 192.168.7.0/30, where 2 are in use;"),
            (&with, held(), json!({"loadBalancerIP": "192.168.7.2"}), "192.168.7.2 belongs to another service"),
            (&with, vec![], json!({"loadBalancerIP": "10.0.0.1"}), "10.0.0.1 is not of the pool 192.168.7.0/30"),
            (&without, vec![], json!({}), "port 80/TCP is used by the node itself on 192.168.1.1"),
        ] {
            let mut services = before;
            services.push(service("c", 80, spec, &[]));
            let plan = plan(&services, settings, &settings.host_ports());
            let reasons: Vec<&str> = plan.without.iter().map(|(_, without)| without.message.as_str()).collect();
            assert!(reasons.len() == 1 && reasons[0].contains(said), "{reasons:?} should say {said}");
        }
    }

    #[test]
    fn a_node_s_own_ports_are_never_given() {
        let node = "192.168.1.1";
        let settings = Settings { node_addresses: vec![node.parse().unwrap()], ..Settings::default() };
        let listening: Ports = [(Protocol::Tcp, 9100), (Protocol::Udp, 161)].into();
        let udp = json!({"ports": [{"port": 161, "protocol": "UDP"}]});
        for (service, is_given) in [
            (service("a", 80, json!({}), &[]), true),
            (service("a", 161, json!({}), &[]), true),
            (service("a", 161, udp, &[]), false),
            (service("a", 22, json!({}), &[]), false),
            (service("a", 22, json!({}), &[node]), false),
            (service("a", 6443, json!({}), &[]), false),
            (service("a", 10_250, json!({}), &[]), false),
            (service("a", 10_256, json!({}), &[]), false),
            (service("a", 2379, json!({}), &[]), false),
            (service("a", 31_000, json!({}), &[]), false),
            (service("a", 9100, json!({}), &[]), false),
        ] {
            let plan = plan(std::slice::from_ref(&service), &settings, &listening);
            let given = plan.changes.iter().any(|(_, given)| !given.is_empty());
            assert_eq!(given, is_given, "{:?}", service.spec);
            let reasons: Vec<&str> = plan.without.iter().map(|(_, without)| without.reason).collect();
            assert_eq!(reasons, if is_given { vec![] } else { vec!["HostPortInUse"] });
        }
        // A pool's address may have any port, but is never the node's own.
        let pool = Settings { pool: vec!["192.168.1.0/30".parse().unwrap()], ..settings };
        let services = [service("a", 22, json!({}), &[]), service("b", 22, json!({"loadBalancerIP": node}), &[])];
        assert_eq!(planned(&services, &pool), (vec!["a=192.168.1.2".to_owned()], 1));
    }

    #[test]
    fn a_node_s_address_is_shared_by_port() {
        let node = "192.168.1.1";
        let mut settings = Settings { node_addresses: vec![node.parse().unwrap()], ..Settings::default() };
        let services =
            [service("a", 80, json!({}), &[]), service("b", 443, json!({}), &[]), service("c", 80, json!({}), &[])];
        assert_eq!(planned(&services, &settings), (vec![format!("a={node}"), format!("b={node}")], 1));
        // Where the node itself answers, no service does, not even one that did.
        settings.node_ports = vec![80];
        let services = [service("a", 80, json!({}), &[node]), service("b", 443, json!({}), &[])];
        assert_eq!(planned(&services, &settings), (vec!["a=".to_owned(), format!("b={node}")], 1));
    }
}
