//! Allocates the cluster IPs and node ports of Services, and releases them when a Service is deleted.
//!
//! A cluster IP is allocated by creating its IPAddress object, which only one writer can do; node ports share one record,
//! which is replaced only if it did not change. So any number of servers may share a store. Allocations of a write that
//! was not stored are released.

mod families;
mod ip_allocator;
mod pending_releases;
mod port_allocator;
mod port_set;
mod range;

pub use range::first_address;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::{Read, Write as _};
use knarr_store::Store;
use serde_json::{Value, json};

use crate::behaviour::PortRange;
use crate::kinds::Kinds;
use crate::object_reader::ObjectReader;
use crate::resource_request::{Reservation, ResourceRequest, WriteHooks};
use families::Family;
use ip_allocator::IpAllocator;
use pending_releases::PendingReleases;
use port_allocator::PortAllocator;

const SERVICE: GroupResource<'static> = GroupResource { group: "", name: "Service" };

/// Allocates cluster IPs and node ports.
pub struct ServiceAllocator {
    objects: Arc<dyn ObjectReader>,
    addresses: Arc<IpAllocator>,
    ports: Arc<PortAllocator>,
    families: Vec<Family>,
}

/// The allocations of a write. Dropping it releases them, unless the write was committed.
#[derive(Default)]
struct ServiceReservation {
    allocated: Vec<String>,
    allocated_ports: Vec<u16>,
    released: Vec<String>,
    released_ports: Vec<u16>,
    allocators: Option<(Arc<IpAllocator>, Arc<PortAllocator>)>,
}

impl Reservation for ServiceReservation {
    /// Releases what the stored Service no longer uses.
    fn commit(mut self: Box<Self>) {
        if let Some((addresses, ports)) = self.allocators.take() {
            ports.release(std::mem::take(&mut self.released_ports));
            addresses.release(std::mem::take(&mut self.released));
        }
    }
}

impl Drop for ServiceReservation {
    fn drop(&mut self) {
        if let Some((addresses, ports)) = self.allocators.take() {
            ports.release(std::mem::take(&mut self.allocated_ports));
            addresses.release(std::mem::take(&mut self.allocated));
        }
    }
}

#[async_trait]
impl WriteHooks for ServiceAllocator {
    /// Sets the address families, cluster IPs and node ports of a new Service.
    async fn before_create(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<Option<Box<dyn Reservation>>, Status> {
        if !is_service(call) {
            return Ok(None);
        }
        call.resource.rules.prepare_create(object, &call.rules_context());
        families::set_defaults(object, None, &self.families)?;
        let mut reservation = self.reservation(dry_run);
        self.allocate_addresses(call, object, &[], &mut reservation, dry_run).await?;
        self.allocate_ports(object, &Value::Null, &mut reservation, dry_run).await?;
        Ok(Some(Box::new(reservation)))
    }

    /// Sets the address families, cluster IPs and node ports that an update needs.
    async fn before_update(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Option<Box<dyn Reservation>>, Status> {
        if !is_service(call) {
            return Ok(None);
        }
        call.resource.rules.prepare_update(object, old, &call.rules_context());
        families::set_defaults(object, Some(old), &self.families)?;
        let mut reservation = self.reservation(dry_run);
        let own = texts(old, "clusterIPs");
        let headless = own.first().is_some_and(|ip| ip == "None");
        if is_external(object) {
            if !headless {
                reservation.released = own;
            }
        } else if !headless {
            self.allocate_addresses(call, object, &own, &mut reservation, dry_run).await?;
            let kept = texts(object, "clusterIPs");
            reservation.released = own.into_iter().filter(|ip| !kept.contains(ip)).collect();
        }
        self.allocate_ports(object, old, &mut reservation, dry_run).await?;
        let kept = ports_of(object);
        reservation.released_ports = ports_of(old).into_iter().filter(|port| !kept.contains(port)).collect();
        Ok(Some(Box::new(reservation)))
    }

    /// Releases the allocations of a deleted Service.
    async fn after_delete(&self, call: &ResourceRequest<'_>, old: &Value) {
        if call.resource.is("", "services") {
            self.ports.release(ports_of(old));
            self.addresses.release(texts(old, "clusterIPs").into_iter().filter(|ip| ip != "None").collect());
        }
    }
}

impl ServiceAllocator {
    pub fn new(
        store: Arc<dyn Store>,
        kinds: Arc<ArcSwap<Kinds>>,
        objects: Arc<dyn ObjectReader>,
        ranges: &[String],
        ports: PortRange,
    ) -> ServiceAllocator {
        let releases = PendingReleases::default();
        let addresses = IpAllocator::new(store.clone(), kinds, objects.clone(), ranges, releases.clone());
        ServiceAllocator {
            objects,
            addresses: Arc::new(addresses),
            ports: Arc::new(PortAllocator::new(store, releases, ports)),
            families: Family::of_ranges(ranges),
        }
    }

    /// Reconciles the recorded allocations with the stored Services; an interrupted write may have left them different.
    pub async fn repair(&self, now: Timestamp) {
        let services = || self.objects.list("", "services", "");
        let owned = || services().iter().flat_map(|service| ports_of(service)).collect();
        if let Err(error) = self.ports.repair(owned, now).await {
            tracing::warn!(%error, "cannot repair the record of node ports");
        }
        self.addresses.repair(&services(), now).await;
    }

    fn reservation(&self, dry_run: bool) -> ServiceReservation {
        let mut reservation = ServiceReservation::default();
        if !dry_run {
            reservation.allocators = Some((self.addresses.clone(), self.ports.clone()));
        }
        reservation
    }

    /// Allocates the cluster IPs that the Service lacks, one per family. `held` are those it has.
    async fn allocate_addresses(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        held: &[String],
        reservation: &mut ServiceReservation,
        dry_run: bool,
    ) -> Result<(), Status> {
        let mut cluster_ips = texts(object, "clusterIPs");
        if is_external(object) || cluster_ips.first().is_some_and(|ip| ip == "None") {
            return Ok(());
        }
        let name = object.text(&["metadata", "name"]).to_owned();
        let families: Vec<Family> = texts(object, "ipFamilies").iter().filter_map(|name| Family::parse(name)).collect();
        cluster_ips.resize(families.len().max(cluster_ips.len()), String::new());
        let requested = cluster_ips.clone();
        for (ip, family) in cluster_ips.iter_mut().zip(&families) {
            if held.contains(ip) {
                continue;
            }
            let service = (call.target.namespace.as_str(), name.as_str());
            let allocated = if ip.is_empty() {
                self.addresses.allocate_next(*family, service, dry_run).await.map_err(|why| {
                    Status::internal(format!("failed to allocate a serviceIP for Service {name:?}: {why}"))
                })?
            } else {
                self.addresses.allocate(ip, service, dry_run).await.map_err(|why| {
                    let requested: Vec<&String> = requested.iter().filter(|ip| !ip.is_empty()).collect();
                    invalid(&name, "clusterIPs", json!(requested), format!("failed to allocate IP {ip}: {why}"))
                })?
            };
            reservation.allocated.push(allocated.clone());
            *ip = allocated;
        }
        if let Some(first) = cluster_ips.first() {
            object.set(&["spec", "clusterIP"], first.as_str());
        }
        object.set(&["spec", "clusterIPs"], cluster_ips);
        Ok(())
    }

    async fn allocate_ports(
        &self,
        object: &mut Value,
        old: &Value,
        reservation: &mut ServiceReservation,
        dry_run: bool,
    ) -> Result<(), Status> {
        reservation.allocated_ports = self.ports.fill(object, &ports_of(old), dry_run).await?;
        Ok(())
    }
}

fn is_service(call: &ResourceRequest<'_>) -> bool {
    call.resource.is("", "services") && call.target.subresource.is_empty()
}

fn is_external(service: &Value) -> bool {
    service.text(&["spec", "type"]) == "ExternalName"
}

fn texts(service: &Value, field: &str) -> Vec<String> {
    service.items(&["spec", field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// All node ports of a Service.
fn ports_of(service: &Value) -> Vec<u16> {
    let own = service.items(&["spec", "ports"]).iter().filter_map(|port| port.integer(&["nodePort"]));
    let health = service.integer(&["spec", "healthCheckNodePort"]);
    own.chain(health).filter_map(|port| u16::try_from(port).ok()).filter(|port| *port != 0).collect()
}

fn invalid(name: &str, field: &str, value: impl Into<Value>, why: String) -> Status {
    let mut errors = Errors::new();
    let spec = Path::root("spec");
    errors.invalid(&spec.child(field), value, why);
    Status::invalid(SERVICE, name, &errors)
}
