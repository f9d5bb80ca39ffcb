//! Allocates cluster IPs. Creating the IPAddress object of an address allocates it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use knarr_api::time;
use knarr_api::value::Read;
use knarr_store::{Error, Store};
use rand::Rng;
use serde_json::{Value, json};

use super::families::Family;
use super::pending_releases::PendingReleases;
use super::range::Range;
use super::texts;
use crate::kinds::{Kinds, Resource};
use crate::object_reader::ObjectReader;
use crate::stored;

const GROUP: &str = "networking.k8s.io";
const KEY_PREFIX: &str = "/registry/ipaddresses/";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGER: &str = "ipallocator.k8s.io";
/// After how many addresses the search yields to other tasks.
const YIELD_INTERVAL: u64 = 256;
/// How long an address without a Service is kept: its Service may be about to be written.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(1);

/// The allocator of cluster IPs.
pub struct IpAllocator {
    store: Arc<dyn Store>,
    kinds: Arc<ArcSwap<Kinds>>,
    objects: Arc<dyn ObjectReader>,
    /// The configured ranges; ServiceCIDR objects add more.
    ranges: Vec<Range>,
    releases: PendingReleases,
}

impl IpAllocator {
    pub fn new(
        store: Arc<dyn Store>,
        kinds: Arc<ArcSwap<Kinds>>,
        objects: Arc<dyn ObjectReader>,
        ranges: &[String],
        releases: PendingReleases,
    ) -> IpAllocator {
        let ranges = ranges.iter().filter_map(|range| Range::parse(range)).collect();
        IpAllocator { store, kinds, objects, ranges, releases }
    }

    /// Allocates a given address to a Service.
    pub async fn allocate(&self, address: &str, service: (&str, &str), dry_run: bool) -> Result<String, String> {
        let parsed: IpAddr = address.parse().map_err(|_| format!("failed to parse service IP {address:?}"))?;
        let ranges = self.ranges();
        if !ranges.iter().any(|range| range.has(parsed)) {
            return Err("the provided network does not match the current range".to_owned());
        }
        if self.create(parsed, service, dry_run).await? {
            return Ok(address.to_owned());
        }
        // A pending release may free it.
        self.releases.wait().await;
        match self.create(parsed, service, dry_run).await? {
            true => Ok(address.to_owned()),
            false => Err("provided IP is already allocated".to_owned()),
        }
    }

    /// Allocates a free address of a family, starting at a random one; the lower part of a range comes last.
    pub async fn allocate_next(&self, family: Family, service: (&str, &str), dry_run: bool) -> Result<String, String> {
        for range in self.ranges().iter().filter(|range| range.family == family) {
            let (usable, reserved) = (range.usable(), range.reserved().min(range.usable()));
            let upper = usable - reserved;
            if upper > 0 {
                let mut at = rand::rng().random_range(0..upper);
                let mut tried = 0;
                while tried < upper {
                    let Some(address) = range.at(reserved + at) else { break };
                    if self.is_free(address) && self.create(address, service, dry_run).await? {
                        return Ok(address.to_string());
                    }
                    tried += 1;
                    at = (at + 1) % upper;
                    if tried % YIELD_INTERVAL == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            }
            for offset in 0..reserved {
                let Some(address) = range.at(offset) else { break };
                if self.is_free(address) && self.create(address, service, dry_run).await? {
                    return Ok(address.to_string());
                }
            }
        }
        Err("range is full".to_owned())
    }

    /// Releases addresses in the background; until it is done they are not allocated again.
    pub fn release(self: &Arc<Self>, addresses: Vec<String>) {
        if addresses.is_empty() {
            return;
        }
        let this = self.clone();
        self.releases.spawn(async move {
            for address in addresses {
                this.remove(&address).await;
            }
        });
    }

    async fn remove(&self, address: &str) {
        let key = [KEY_PREFIX, address].concat();
        while let Some(entry) = self.store.peek(&key) {
            match self.store.delete(&key, entry.revision).await {
                Ok(_) | Err(Error::Conflict { current: None, .. }) => return,
                Err(Error::Conflict { .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, address, "cannot release an address; the next repair will");
                    return;
                }
            }
        }
    }

    /// Creates the objects that stored Services lack, and removes those without a Service.
    pub async fn repair(self: &Arc<Self>, services: &[Arc<Value>], now: Timestamp) {
        let mut owners: HashMap<String, (String, String)> = HashMap::new();
        for service in services {
            let owner =
                (service.text(&["metadata", "namespace"]).to_owned(), service.text(&["metadata", "name"]).to_owned());
            for address in texts(service, "clusterIPs").into_iter().filter(|address| address != "None") {
                owners.insert(address, owner.clone());
            }
        }
        for (address, (namespace, name)) in &owners {
            if let Ok(parsed) = address.parse::<IpAddr>()
                && let Err(why) = self.create(parsed, (namespace, name), false).await
            {
                tracing::warn!(why, address, "cannot record the address of a service");
            }
        }
        for object in self.objects.list(GROUP, "ipaddresses", "") {
            let address = object.text(&["metadata", "name"]);
            let ours = object.text(&["metadata", "labels", MANAGED_BY]) == MANAGER;
            let created: Option<Timestamp> = object.text(&["metadata", "creationTimestamp"]).parse().ok();
            let is_old = created.is_none_or(|created| now.duration_since(created) >= GRACE_PERIOD);
            if ours && is_old && !owners.contains_key(address) {
                self.remove(address).await;
            }
        }
    }

    fn is_free(&self, address: IpAddr) -> bool {
        self.store.peek(&[KEY_PREFIX, &address.to_string()].concat()).is_none()
    }

    /// Creates the object of an address; false if it exists.
    async fn create(&self, address: IpAddr, (namespace, name): (&str, &str), dry_run: bool) -> Result<bool, String> {
        let kinds = self.kinds.load_full();
        let resource: &Arc<Resource> = kinds.stored(GROUP, "ipaddresses").ok_or("the kind IPAddress is missing")?;
        let text = address.to_string();
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        let object = json!({
            "metadata": {
                "name": text, "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": time::seconds(Timestamp::now()),
                "labels": {FAMILY: family.name(), MANAGED_BY: MANAGER},
            },
            "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
        });
        let key = resource.key("", &text);
        if dry_run {
            return Ok(self.store.peek(&key).is_none());
        }
        match self.store.create(&key, stored::encode(resource, &object), None).await {
            Ok(_) => Ok(true),
            Err(Error::Exists(_)) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    fn ranges(&self) -> Vec<Range> {
        let mut ranges = self.ranges.clone();
        for object in self.objects.list(GROUP, "servicecidrs", "") {
            if object.has(&["metadata", "deletionTimestamp"]) {
                continue;
            }
            for range in texts(&object, "cidrs").iter().filter_map(|text| Range::parse(text)) {
                if !ranges.contains(&range) {
                    ranges.push(range);
                }
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::request_tests::Cluster;

    #[tokio::test]
    async fn addresses_outside_all_ranges_are_refused() {
        let cluster = Cluster::new().await;
        for address in ["10.97.0.9", "192.0.2.1", "10.96.0.0", "10.96.0.255"] {
            let service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
                "spec": {"clusterIP": address, "ports": [{"port": 80}]},
            });
            let (code, status) = cluster.json("POST", "/api/v1/namespaces/default/services", service).await;
            let expected = format!(
                "Service \"s\" is invalid: spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP \
                 {address}: the provided network does not match the current range"
            );
            assert_eq!((code, &status["message"]), (422, &Value::from(expected)));
        }
    }
}
