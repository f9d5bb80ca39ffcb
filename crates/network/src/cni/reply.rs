//! Replies to the container runtime, in each version of the CNI specification.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::cidr::Cidr;

pub const NEWEST: &str = "1.1.0";
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Error codes of the specification.
pub mod codes {
    pub const VERSION: u32 = 1;
    pub const UNKNOWN_CONTAINER: u32 = 3;
    pub const ENVIRONMENT: u32 = 4;
    pub const IO: u32 = 5;
    pub const DECODE: u32 = 6;
    pub const CONFIGURATION: u32 = 7;
    pub const NOT_READY: u32 = 50;
    /// Plugin-specific: a kernel operation failed.
    pub const KERNEL: u32 = 100;
    /// Plugin-specific: no address is free.
    pub const NO_ADDRESS: u32 = 101;
    /// Plugin-specific: the node itself uses a host port.
    pub const PORT_IN_USE: u32 = 102;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: u32,
    pub message: String,
    pub details: String,
}

impl Failure {
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new() }
    }

    pub fn io(message: &str, error: std::io::Error) -> Self {
        Self { details: error.to_string(), ..Self::new(codes::IO, message) }
    }

    /// An error with its chain of sources.
    pub fn of(code: u32, error: &dyn std::error::Error) -> Self {
        let mut details = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            details.push(cause.to_string());
            source = cause.source();
        }
        Self { code, message: error.to_string(), details: details.join(": ") }
    }

    pub fn to_json(&self, version: &str) -> Value {
        json!({"cniVersion": version, "code": self.code, "msg": self.message, "details": self.details})
    }
}

pub fn versions(version: &str) -> Value {
    json!({"cniVersion": version, "supportedVersions": VERSIONS})
}

/// A created attachment.
#[derive(Clone, Debug)]
pub struct Attached {
    pub bridge: String,
    pub bridge_mac: String,
    pub host: String,
    pub host_mac: String,
    pub interface: String,
    pub mac: String,
    pub namespace: String,
    pub mtu: u32,
    /// Addresses, each with its gateway.
    pub addresses: Vec<(IpAddr, IpAddr)>,
}

impl Attached {
    pub fn to_json(&self, version: &str) -> Value {
        let names_family = version.starts_with("0.");
        let has_mtu = version == "1.1.0";
        let interface = |name: &str, mac: &str, sandbox: Option<&str>| {
            let mut interface = json!({"name": name, "mac": mac});
            if let Some(sandbox) = sandbox {
                interface["sandbox"] = json!(sandbox);
            }
            if has_mtu {
                interface["mtu"] = json!(self.mtu);
            }
            interface
        };
        let addresses: Vec<Value> = self
            .addresses
            .iter()
            .map(|(address, gateway)| {
                let length = if address.is_ipv4() { 32 } else { 128 };
                let mut rendered =
                    json!({"interface": 2, "address": format!("{address}/{length}"), "gateway": gateway.to_string()});
                if names_family {
                    rendered["version"] = json!(if address.is_ipv4() { "4" } else { "6" });
                }
                rendered
            })
            .collect();
        let routes: Vec<Value> = self
            .addresses
            .iter()
            .map(|(address, gateway)| json!({"dst": everywhere(address.is_ipv4()), "gw": gateway.to_string()}))
            .collect();
        json!({
            "cniVersion": version,
            "interfaces": [
                interface(&self.bridge, &self.bridge_mac, None),
                interface(&self.host, &self.host_mac, None),
                interface(&self.interface, &self.mac, Some(&self.namespace)),
            ],
            "ips": addresses,
            "routes": routes,
            "dns": {},
        })
    }
}

fn everywhere(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "0.0.0.0/0" } else { "::/0" }
}

/// The destination of a default route.
pub fn default_network(address: IpAddr) -> Option<Cidr> {
    everywhere(address.is_ipv4()).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_shape_of_their_version() {
        let attached = Attached {
            bridge: "knarr0".into(),
            bridge_mac: "0a:58:0a:f4:00:01".into(),
            host: "kn1".into(),
            host_mac: "02:00:00:00:00:01".into(),
            interface: "eth0".into(),
            mac: "0a:58:0a:f4:00:02".into(),
            namespace: "/run/netns/x".into(),
            mtu: 1400,
            addresses: vec![([10, 244, 0, 2].into(), [10, 244, 0, 1].into())],
        };
        for (version, family, mtu) in [
            ("0.3.1", json!("4"), Value::Null),
            ("1.0.0", Value::Null, Value::Null),
            ("1.1.0", Value::Null, json!(1400)),
        ] {
            let result = attached.to_json(version);
            assert_eq!((&result["ips"][0]["version"], &result["interfaces"][2]["mtu"]), (&family, &mtu), "{version}");
            assert_eq!(result["ips"][0]["address"], "10.244.0.2/32");
            assert_eq!(result["interfaces"][2]["sandbox"], "/run/netns/x");
        }
    }
}
