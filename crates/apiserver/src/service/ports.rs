//! Node ports.

use std::collections::{BTreeSet, HashMap};

use knarr_api::field::{Errors, Path};
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use rand::Rng;
use serde_json::Value;

use super::SERVICE;

const FIRST: u16 = 30_000;
const LAST: u16 = 32_767;
/// Left to those who ask for a certain port, as long as others are free.
const RESERVED: u16 = 86;

/// The ports that are in use.
#[derive(Clone, Debug, Default)]
pub struct Ports(BTreeSet<u16>);

impl Ports {
    pub fn hold(&mut self, ports: &[u16]) {
        self.0.extend(ports);
    }

    pub fn release(&mut self, ports: &[u16]) {
        for port in ports {
            self.0.remove(port);
        }
    }

    fn take(&mut self, port: i64) -> Result<u16, String> {
        let wanted = u16::try_from(port).ok().filter(|port| (FIRST..=LAST).contains(port)).ok_or_else(|| {
            format!("provided port is not in the valid range. The range of valid ports is {FIRST}-{LAST}")
        })?;
        if self.0.insert(wanted) { Ok(wanted) } else { Err("provided port is already allocated".to_owned()) }
    }

    fn take_any(&mut self) -> Result<u16, String> {
        let upper = FIRST + RESERVED..=LAST;
        let begin = rand::rng().random_range(upper.clone());
        let around = (begin..=LAST).chain(FIRST + RESERVED..begin).chain(FIRST..FIRST + RESERVED);
        let free = around.into_iter().find(|port| !self.0.contains(port)).ok_or("range is full")?;
        self.0.insert(free);
        Ok(free)
    }

    /// Gives a Service the ports it needs and does not have. `held` are those it has already; what is taken is told even
    /// when something fails.
    pub fn fill(&mut self, service: &mut Value, held: &[u16], taken: &mut Vec<u16>) -> Result<(), Status> {
        let kind = service.text(&["spec", "type"]).to_owned();
        let name = service.text(&["metadata", "name"]).to_owned();
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            let gives = kind == "NodePort" || service.flag(&["spec", "allocateLoadBalancerNodePorts"]) != Some(false);
            self.fill_ports(service, &name, gives, held, taken)?;
        }
        let local = service.text(&["spec", "externalTrafficPolicy"]) == "Local";
        if kind == "LoadBalancer" && local {
            let asked = service.integer(&["spec", "healthCheckNodePort"]).unwrap_or(0);
            if asked == 0 {
                let port = self.take_any().map_err(|why| {
                    Status::internal(format!("failed to allocate a HealthCheck NodePort {asked}: {why}"))
                })?;
                taken.push(port);
                service.set(&["spec", "healthCheckNodePort"], port);
            } else if !held.iter().any(|port| i64::from(*port) == asked) {
                let port = self.take(asked).map_err(|why| {
                    Status::internal(format!("failed to allocate requested HealthCheck NodePort {asked}: {why}"))
                })?;
                taken.push(port);
            }
        }
        Ok(())
    }

    fn fill_ports(
        &mut self,
        service: &mut Value,
        name: &str,
        gives: bool,
        held: &[u16],
        taken: &mut Vec<u16>,
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
            let asked = match port.integer(&["nodePort"]).unwrap_or(0) {
                0 if !gives => continue,
                0 if is_new => by_port.get(&number).copied().unwrap_or(0),
                asked => asked,
            };
            if asked == 0 {
                let free =
                    self.take_any().map_err(|why| Status::internal(format!("failed to allocate a nodePort: {why}")))?;
                taken.push(free);
                by_port.insert(number, i64::from(free));
                port.set(&["nodePort"], free);
                continue;
            }
            let known = held.iter().chain(taken.iter()).any(|own| i64::from(*own) == asked);
            if !known {
                let own = self.take(asked).map_err(|why| {
                    let mut errors = Errors::new();
                    let spec = Path::root("spec");
                    let at = spec.item("ports", index);
                    errors.invalid(&at.child("nodePort"), asked, why);
                    Status::invalid(SERVICE, name, &errors)
                })?;
                taken.push(own);
            }
            port.set(&["nodePort"], asked);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_given_once() {
        let mut ports = Ports::default();
        let mut service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [
            {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 80, "nodePort": 30_005}]}});
        let mut taken = Vec::new();
        ports.fill(&mut service, &[], &mut taken).unwrap();
        let given = service["spec"]["ports"].as_array().unwrap();
        assert_eq!(given[0]["nodePort"], given[1]["nodePort"]);
        assert_eq!((given[2]["nodePort"].as_i64(), taken.len()), (Some(30_005), 2));
        let mut other = json!({"metadata": {"name": "o"}, "spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_005}]}});
        let refusal = ports.fill(&mut other, &[], &mut Vec::new()).unwrap_err();
        assert!(
            refusal
                .message
                .ends_with("spec.ports[0].nodePort: Invalid value: 30005: provided port is already allocated")
        );
        ports.release(&taken);
        ports.fill(&mut other, &[], &mut Vec::new()).unwrap();
    }
}
