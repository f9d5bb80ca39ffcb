//! Addresses and ports of Services: given out once, taken back when a Service goes.
//!
//! A cluster address is taken by making the IPAddress object of its name, which only one writer can do; node ports are
//! recorded together and taken by replacing that record. So any number of servers may share a store. What a write took goes
//! back unless the write was stored.

mod addresses;
mod families;
mod kubernetes_service;
mod port_set;
mod ports;
mod range;
mod releases;

pub use kubernetes_service::{publish, run};
pub use range::first_address;

use std::sync::Arc;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{Named, Status};
use knarr_api::value::{Read, Write as _};
use knarr_store::Store;
use serde_json::{Value, json};

use crate::resource_request::ResourceRequest;
use crate::state::ApiServer;
use addresses::Addresses;
use families::Family;
use ports::Ports;
use releases::Releases;

const SERVICE: Named<'static> = Named { group: "", name: "Service" };

/// Gives out cluster addresses and node ports.
pub struct Services {
    addresses: Arc<Addresses>,
    ports: Arc<Ports>,
    families: Vec<Family>,
}

/// What a write was given. Dropping it gives everything back that was taken, unless the write was stored.
#[derive(Default)]
pub struct Reservation {
    taken: Vec<String>,
    taken_ports: Vec<u16>,
    released: Vec<String>,
    released_ports: Vec<u16>,
    back_to: Option<(Arc<Addresses>, Arc<Ports>)>,
}

impl Reservation {
    /// The write was stored: what it was given is its own, and what it no longer has is free.
    pub fn keep(mut self) {
        if let Some((addresses, ports)) = self.back_to.take() {
            ports.release(std::mem::take(&mut self.released_ports));
            addresses.release(std::mem::take(&mut self.released));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some((addresses, ports)) = self.back_to.take() {
            ports.release(std::mem::take(&mut self.taken_ports));
            addresses.release(std::mem::take(&mut self.taken));
        }
    }
}

impl Services {
    pub fn new(store: Arc<dyn Store>, ranges: &[String]) -> Services {
        let releases = Releases::default();
        Services {
            addresses: Arc::new(Addresses::new(store.clone(), ranges, releases.clone())),
            ports: Arc::new(Ports::new(store, releases)),
            families: Family::of_ranges(ranges),
        }
    }

    pub async fn begin_create(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<Reservation, Status> {
        if !concerns(call) {
            return Ok(Reservation::default());
        }
        call.resource.rules.prepare_create(object, &call.rules_context());
        families::settle(object, None, &self.families)?;
        let mut reservation = self.reservation(dry_run);
        self.take_addresses(call, object, &[], &mut reservation, dry_run).await?;
        self.take_ports(object, &Value::Null, &mut reservation, dry_run).await?;
        Ok(reservation)
    }

    pub async fn begin_update(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Reservation, Status> {
        if !concerns(call) {
            return Ok(Reservation::default());
        }
        call.resource.rules.prepare_update(object, old, &call.rules_context());
        families::settle(object, Some(old), &self.families)?;
        let mut reservation = self.reservation(dry_run);
        let own = texts(old, "clusterIPs");
        let headless = own.first().is_some_and(|ip| ip == "None");
        if is_external(object) {
            if !headless {
                reservation.released = own;
            }
        } else if !headless {
            self.take_addresses(call, object, &own, &mut reservation, dry_run).await?;
            let kept = texts(object, "clusterIPs");
            reservation.released = own.into_iter().filter(|ip| !kept.contains(ip)).collect();
        }
        self.take_ports(object, old, &mut reservation, dry_run).await?;
        let kept = ports_of(object);
        reservation.released_ports = ports_of(old).into_iter().filter(|port| !kept.contains(port)).collect();
        Ok(reservation)
    }

    /// Takes back what a Service that is gone had.
    pub async fn after_delete(&self, call: &ResourceRequest<'_>, old: &Value) {
        if call.resource.is("", "services") {
            self.ports.release(ports_of(old));
            self.addresses.release(texts(old, "clusterIPs").into_iter().filter(|ip| ip != "None").collect());
        }
    }

    /// Makes what is recorded agree with the stored Services, as a write that was cut short may have left it otherwise.
    pub async fn repair(&self, server: &ApiServer, now: Timestamp) {
        let services = || server.objects.list("", "services", "");
        let owned = || services().iter().flat_map(|service| ports_of(service)).collect();
        if let Err(error) = self.ports.repair(owned, now).await {
            tracing::warn!(%error, "the record of node ports cannot be repaired");
        }
        self.addresses.repair(server, &services(), now).await;
    }

    fn reservation(&self, dry_run: bool) -> Reservation {
        let mut reservation = Reservation::default();
        if !dry_run {
            reservation.back_to = Some((self.addresses.clone(), self.ports.clone()));
        }
        reservation
    }

    /// Fills in the addresses that the Service does not have yet, one for each of its families. It has those it holds.
    async fn take_addresses(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        held: &[String],
        reservation: &mut Reservation,
        dry_run: bool,
    ) -> Result<(), Status> {
        let mut wanted = texts(object, "clusterIPs");
        if is_external(object) || wanted.first().is_some_and(|ip| ip == "None") {
            return Ok(());
        }
        let name = object.text(&["metadata", "name"]).to_owned();
        let families: Vec<Family> = texts(object, "ipFamilies").iter().filter_map(|name| Family::parse(name)).collect();
        wanted.resize(families.len().max(wanted.len()), String::new());
        let shown = wanted.clone();
        for (ip, family) in wanted.iter_mut().zip(&families) {
            if held.contains(ip) {
                continue;
            }
            let service = (call.target.namespace.as_str(), name.as_str());
            let taken = if ip.is_empty() {
                self.addresses.take_any(call.server, *family, service, dry_run).await.map_err(|why| {
                    Status::internal(format!("failed to allocate a serviceIP for Service {name:?}: {why}"))
                })?
            } else {
                self.addresses.take(call.server, ip, service, dry_run).await.map_err(|why| {
                    let shown: Vec<&String> = shown.iter().filter(|ip| !ip.is_empty()).collect();
                    invalid(&name, "clusterIPs", json!(shown), format!("failed to allocate IP {ip}: {why}"))
                })?
            };
            reservation.taken.push(taken.clone());
            *ip = taken;
        }
        if let Some(first) = wanted.first() {
            object.set(&["spec", "clusterIP"], first.as_str());
        }
        object.set(&["spec", "clusterIPs"], wanted);
        Ok(())
    }

    async fn take_ports(
        &self,
        object: &mut Value,
        old: &Value,
        reservation: &mut Reservation,
        dry_run: bool,
    ) -> Result<(), Status> {
        reservation.taken_ports = self.ports.fill(object, &ports_of(old), dry_run).await?;
        Ok(())
    }
}

fn concerns(call: &ResourceRequest<'_>) -> bool {
    call.resource.is("", "services") && call.target.subresource.is_empty()
}

fn is_external(service: &Value) -> bool {
    service.text(&["spec", "type"]) == "ExternalName"
}

fn texts(service: &Value, field: &str) -> Vec<String> {
    service.items(&["spec", field]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Every node port that a Service has.
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
