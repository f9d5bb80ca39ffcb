//! The set of allocated node ports, and the choice of ports for a Service. Uses no store and no clock.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::field::{Errors, Path};
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use rand::Rng;
use serde_json::Value;

use super::SERVICE;
use crate::behaviour::PortRange;

/// The allocated ports of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSet {
    range: PortRange,
    /// The lowest bit is the first port.
    bitmap: Box<[u8]>,
}

/// How many of the first ports are left for requests of a specific port while others are free.
fn reserved(range: PortRange) -> u16 {
    const MIN: u16 = 16;
    const MAX: u16 = 128;
    // The first port counts, too.
    match range.width().saturating_add(1) {
        size if size <= MIN => 0,
        size => (size / 32).clamp(MIN, MAX),
    }
}

impl PortSet {
    pub fn new(range: PortRange) -> PortSet {
        PortSet { range, bitmap: vec![0; usize::from(range.width()) / 8 + 1].into() }
    }

    /// The encoding of Kubernetes: the bytes of the bitmap in base64, highest first and without leading zeros.
    pub fn encode(&self) -> String {
        let used = self.bitmap.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let bytes: Vec<u8> = self.bitmap[..used].iter().rev().copied().collect();
        STANDARD.encode(bytes)
    }

    pub fn decode(text: &str, range: PortRange) -> Option<PortSet> {
        let mut set = PortSet::new(range);
        let bytes = STANDARD.decode(text).ok().filter(|bytes| bytes.len() <= set.bitmap.len())?;
        for (own, byte) in set.bitmap.iter_mut().zip(bytes.iter().rev()) {
            *own = *byte;
        }
        Some(set)
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (self.range.first..=self.range.last).filter(|port| self.contains(*port))
    }

    pub fn contains(&self, port: u16) -> bool {
        self.bit_of(port).is_some_and(|(byte, bit)| self.bitmap[byte] & bit != 0)
    }

    /// Allocates a port; false if it is allocated already or outside the range.
    pub fn insert(&mut self, port: u16) -> bool {
        let free = !self.contains(port);
        self.bit_of(port).is_some_and(|(byte, bit)| {
            self.bitmap[byte] |= bit;
            free
        })
    }

    pub fn remove(&mut self, port: u16) {
        if let Some((byte, bit)) = self.bit_of(port) {
            self.bitmap[byte] &= !bit;
        }
    }

    fn bit_of(&self, port: u16) -> Option<(usize, u8)> {
        let offset = port.checked_sub(self.range.first).filter(|_| port <= self.range.last)?;
        Some((usize::from(offset / 8), 1 << (offset % 8)))
    }

    fn allocate(&mut self, port: i64) -> Result<u16, String> {
        let port = u16::try_from(port).ok().filter(|port| self.range.contains(*port)).ok_or_else(|| {
            format!("provided port is not in the valid range. The range of valid ports is {}", self.range)
        })?;
        if self.insert(port) { Ok(port) } else { Err("provided port is already allocated".to_owned()) }
    }

    fn allocate_next(&mut self) -> Result<u16, String> {
        let PortRange { first, last } = self.range;
        let unreserved = first + reserved(self.range);
        let start = rand::rng().random_range(unreserved..=last);
        let around = (start..=last).chain(unreserved..start).chain(first..unreserved);
        let free = around.into_iter().find(|port| !self.contains(*port)).ok_or("range is full")?;
        self.insert(free);
        Ok(free)
    }

    /// Allocates the ports that a Service needs and lacks. `held` are those it has. `allocated` receives the new ones, even
    /// if the call fails.
    pub fn fill(&mut self, service: &mut Value, held: &[u16], allocated: &mut Vec<u16>) -> Result<(), Status> {
        let kind = service.text(&["spec", "type"]).to_owned();
        let name = service.text(&["metadata", "name"]).to_owned();
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            let allocates =
                kind == "NodePort" || service.flag(&["spec", "allocateLoadBalancerNodePorts"]) != Some(false);
            self.fill_ports(service, &name, allocates, held, allocated)?;
        }
        let local = service.text(&["spec", "externalTrafficPolicy"]) == "Local";
        if kind == "LoadBalancer" && local {
            let requested = service.integer(&["spec", "healthCheckNodePort"]).unwrap_or(0);
            if requested == 0 {
                let port = self.allocate_next().map_err(|why| {
                    Status::internal(format!("failed to allocate a HealthCheck NodePort {requested}: {why}"))
                })?;
                allocated.push(port);
                service.set(&["spec", "healthCheckNodePort"], port);
            } else if !held.iter().any(|port| i64::from(*port) == requested) {
                let port = self.allocate(requested).map_err(|why| {
                    Status::internal(format!("failed to allocate requested HealthCheck NodePort {requested}: {why}"))
                })?;
                allocated.push(port);
            }
        }
        Ok(())
    }

    fn fill_ports(
        &mut self,
        service: &mut Value,
        name: &str,
        allocates: bool,
        held: &[u16],
        allocated: &mut Vec<u16>,
    ) -> Result<(), Status> {
        // A port that is served over two protocols has one node port for both.
        let mut by_port: HashMap<i64, i64> = HashMap::new();
        for port in service.items(&["spec", "ports"]).iter() {
            let node_port = port.integer(&["nodePort"]).unwrap_or(0);
            if node_port != 0 {
                by_port.entry(port.integer(&["port"]).unwrap_or(0)).or_insert(node_port);
            }
        }
        let is_new = held.is_empty();
        for (index, port) in service.items_mut(&["spec", "ports"]).iter_mut().enumerate() {
            let number = port.integer(&["port"]).unwrap_or(0);
            let requested = match port.integer(&["nodePort"]).unwrap_or(0) {
                0 if !allocates => continue,
                0 if is_new => by_port.get(&number).copied().unwrap_or(0),
                requested => requested,
            };
            if requested == 0 {
                let free = self
                    .allocate_next()
                    .map_err(|why| Status::internal(format!("failed to allocate a nodePort: {why}")))?;
                allocated.push(free);
                by_port.insert(number, i64::from(free));
                port.set(&["nodePort"], free);
                continue;
            }
            let known = held.iter().chain(allocated.iter()).any(|own| i64::from(*own) == requested);
            if !known {
                let own = self.allocate(requested).map_err(|why| {
                    let mut errors = Errors::new();
                    let spec = Path::root("spec");
                    let at = spec.item("ports", index);
                    errors.invalid(&at.child("nodePort"), requested, why);
                    Status::invalid(SERVICE, name, &errors)
                })?;
                allocated.push(own);
            }
            port.set(&["nodePort"], requested);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_allocated_once() {
        let mut ports = PortSet::new(PortRange::default());
        let mut service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [
            {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 80, "nodePort": 30_005}]}});
        let mut allocated = Vec::new();
        ports.fill(&mut service, &[], &mut allocated).unwrap();
        let given = service["spec"]["ports"].as_array().unwrap();
        assert_eq!(given[0]["nodePort"], given[1]["nodePort"]);
        assert_eq!((given[2]["nodePort"].as_i64(), allocated.len()), (Some(30_005), 2));
        let mut other = json!({"metadata": {"name": "o"}, "spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_005}]}});
        let refusal = ports.fill(&mut other, &[], &mut Vec::new()).unwrap_err();
        assert!(
            refusal
                .message
                .ends_with("spec.ports[0].nodePort: Invalid value: 30005: provided port is already allocated")
        );
        allocated.iter().for_each(|port| ports.remove(*port));
        ports.fill(&mut other, &[], &mut Vec::new()).unwrap();
    }

    #[test]
    fn sets_round_trip_through_their_encoding() {
        let mut set = PortSet::new(PortRange::default());
        assert_eq!(set.encode(), "");
        for (port, text) in [(30_000, "AQ=="), (30_001, "Aw=="), (30_008, "AQM=")] {
            assert!(set.insert(port) && !set.insert(port));
            assert_eq!(set.encode(), text, "{port}");
        }
        set.insert(32_767);
        assert_eq!(PortSet::decode(&set.encode(), PortRange::default()), Some(set.clone()));
        assert_eq!(set.iter().collect::<Vec<_>>(), [30_000, 30_001, 30_008, 32_767]);
        assert!(!set.insert(29_999) && !set.insert(32_768));
        assert_eq!(PortSet::decode("no base64!", PortRange::default()), None);
        assert_eq!(PortSet::decode(&STANDARD.encode([1; 347]), PortRange::default()), None);
    }

    #[test]
    fn small_and_large_ranges_are_used_whole() {
        for (range, left) in
            [("8080", 0), ("30000-30015", 0), ("30000-30031", 16), ("30000-32767", 86), ("1-65535", 128)]
        {
            let range: PortRange = range.parse().unwrap();
            assert_eq!(reserved(range), left, "{range}");
        }
        let mut set = PortSet::new("8000-8003".parse().unwrap());
        let mut ports: Vec<u16> = (0..4).map(|_| set.allocate_next().unwrap()).collect();
        ports.sort_unstable();
        assert_eq!((ports, set.allocate_next()), (vec![8000, 8001, 8002, 8003], Err("range is full".to_owned())));
    }
}
