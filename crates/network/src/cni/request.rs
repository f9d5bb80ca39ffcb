//! Parses the container runtime's CNI calls.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::reply::{Failure, VERSIONS, codes};
use crate::cidr::Cidr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Delete,
    Check,
    Status,
    CollectGarbage,
    Version,
}

/// One call.
#[derive(Debug)]
pub struct Request {
    pub command: Command,
    pub container: String,
    /// `None` where the namespace may be gone.
    pub namespace: Option<PathBuf>,
    pub interface: String,
    /// The pod, if the runtime names it.
    pub pod: Option<PodName>,
    pub config: Config,
}

/// The API identity of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    /// Empty if the runtime does not send it.
    #[serde(default)]
    pub uid: String,
}

impl PodName {
    /// Parses `CNI_ARGS`: pairs of names and values.
    fn read(arguments: &str) -> Option<Self> {
        let of = |key: &str| {
            let mut pairs = arguments.split(';').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
        };
        Some(Self {
            namespace: of("K8S_POD_NAMESPACE")?,
            name: of("K8S_POD_NAME")?,
            uid: of("K8S_POD_UID").unwrap_or_default(),
        })
    }

    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The network configuration, with the runtime's additions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    pub cni_version: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub bridge: String,
    pub data_dir: PathBuf,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<Cidr>,
    #[serde(rename = "clusterCIDRs")]
    pub cluster_cidrs: Vec<Cidr>,
    pub mtu: Option<u32>,
    pub runtime_config: RuntimeConfig,
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<Attachment>>,
    pub prev_result: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeConfig {
    pub port_mappings: Vec<PortMapping>,
    pub bandwidth: Option<Bandwidth>,
}

/// containerd capitalizes these names; the CNI conventions do not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    #[serde(alias = "HostPort")]
    pub host_port: u16,
    #[serde(alias = "ContainerPort")]
    pub container_port: u16,
    #[serde(default, alias = "Protocol")]
    pub protocol: String,
    #[serde(rename = "hostIP", default, alias = "HostIP")]
    pub host_ip: String,
}

impl PortMapping {
    /// The address to which the port is bound; `None` for all.
    pub fn host_address(&self) -> Option<IpAddr> {
        self.host_ip.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
    }
}

/// In bits per second, and bits. Names as for port mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bandwidth {
    #[serde(alias = "IngressRate")]
    pub ingress_rate: u64,
    #[serde(alias = "IngressBurst")]
    pub ingress_burst: u64,
    #[serde(alias = "EgressRate")]
    pub egress_rate: u64,
    #[serde(alias = "EgressBurst")]
    pub egress_burst: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Attachment {
    #[serde(rename = "containerID")]
    pub container: String,
    #[serde(rename = "ifname")]
    pub interface: String,
}

impl Request {
    pub fn from_process() -> Result<Self, Failure> {
        let environment = std::env::vars().filter(|(name, _)| name.starts_with("CNI_")).collect();
        let mut input = String::new();
        std::io::stdin()
            .read_to_string(&mut input)
            .map_err(|error| Failure::io("cannot read standard input", error))?;
        Self::read(&environment, &input)
    }

    fn read(environment: &BTreeMap<String, String>, input: &str) -> Result<Self, Failure> {
        let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        let command = match variable("CNI_COMMAND").map(String::as_str) {
            Some("ADD") => Command::Add,
            Some("DEL") => Command::Delete,
            Some("CHECK") => Command::Check,
            Some("STATUS") => Command::Status,
            Some("GC") => Command::CollectGarbage,
            Some("VERSION") => Command::Version,
            other => {
                let other = other.unwrap_or("nothing");
                return Err(Failure::new(codes::ENVIRONMENT, format!("unknown CNI_COMMAND {other}")));
            }
        };
        let config: Config = match input.trim() {
            "" if command == Command::Version => Config::default(),
            text => serde_json::from_str(text)
                .map_err(|error| Failure::new(codes::DECODE, format!("cannot parse the configuration: {error}")))?,
        };
        let needs_container = matches!(command, Command::Add | Command::Delete | Command::Check);
        let needs_namespace = matches!(command, Command::Add | Command::Check);
        let needed = |name: &str, is_needed: bool| match variable(name) {
            Some(value) => Ok(value.clone()),
            None if is_needed => Err(Failure::new(codes::ENVIRONMENT, format!("{name} is missing"))),
            None => Ok(String::new()),
        };
        let container = needed("CNI_CONTAINERID", needs_container)?;
        let interface = needed("CNI_IFNAME", needs_container)?;
        let namespace = needed("CNI_NETNS", needs_namespace)?;
        if !container.is_empty() && !is_plain_name(&container) {
            return Err(Failure::new(codes::ENVIRONMENT, "CNI_CONTAINERID contains invalid characters"));
        }
        if needs_container
            && (interface.len() > 15 || interface.contains(['/', ':', ' ']) || interface.starts_with('.'))
        {
            return Err(Failure::new(codes::ENVIRONMENT, "CNI_IFNAME is not a valid interface name"));
        }
        let namespace = (!namespace.is_empty()).then(|| PathBuf::from(namespace));
        let pod = variable("CNI_ARGS").and_then(|arguments| PodName::read(arguments));
        Ok(Self { command, container, namespace, interface, pod, config })
    }

    /// The caller's version; the oldest if it sends none.
    pub fn version(&self) -> String {
        if self.config.cni_version.is_empty() { "0.1.0".to_owned() } else { self.config.cni_version.clone() }
    }

    pub fn check_version(&self) -> Result<(), Failure> {
        if VERSIONS.contains(&self.version().as_str()) {
            return Ok(());
        }
        let message = format!("CNI version {} is not supported", self.version());
        Err(Failure { details: VERSIONS.join(", "), ..Failure::new(codes::VERSION, message) })
    }
}

fn is_plain_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && characters.all(|character| character.is_ascii_alphanumeric() || "_.-".contains(character))
}

/// Parses an input as every command, for fuzzing.
pub fn fuzz(input: &str) {
    for command in ["ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION"] {
        let variables = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c"),
            ("CNI_NETNS", "/run/netns/n"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", input.lines().next().unwrap_or_default()),
        ];
        let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        drop(Request::read(&environment, input));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environment: &[(&str, &str)], input: &str) -> Result<Request, Failure> {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Request::read(&environment, input)
    }

    #[test]
    fn a_call_is_parsed() {
        let input = r#"{"cniVersion":"1.0.0","name":"knarr","type":"knarr","podCIDRs":["10.244.0.0/24","fd00::/64"],
            "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":"0.0.0.0"}],
            "bandwidth":{"ingressRate":1000,"ingressBurst":10}}}"#;
        let environment =
            [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "a1"), ("CNI_NETNS", "/run/netns/x"), ("CNI_IFNAME", "eth0")];
        let request = read(&environment, input).unwrap();
        assert_eq!((request.command, request.config.pod_cidrs.len()), (Command::Add, 2));
        assert_eq!(request.config.runtime_config.port_mappings[0].host_address(), None);
        request.check_version().unwrap();
    }

    #[test]
    fn capabilities_are_parsed_in_either_spelling() {
        let plain = r#"{"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"udp","hostIP":"10.0.0.1"}],
            "bandwidth":{"ingressRate":1,"ingressBurst":2,"egressRate":3,"egressBurst":4}}"#;
        let capitals = r#"{"portMappings":[{"HostPort":80,"ContainerPort":8080,"Protocol":"udp","HostIP":"10.0.0.1"}],
            "bandwidth":{"IngressRate":1,"IngressBurst":2,"EgressRate":3,"EgressBurst":4}}"#;
        let read = |text: &str| serde_json::from_str::<RuntimeConfig>(text).unwrap();
        let (one, other) = (read(plain), read(capitals));
        assert_eq!((one.port_mappings, one.bandwidth), (other.port_mappings, other.bandwidth));
    }

    #[test]
    fn missing_and_invalid_input_has_its_error_code() {
        let whole = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "a"), ("CNI_NETNS", "/n"), ("CNI_IFNAME", "eth0")];
        for (environment, input, code) in [
            (&whole[..3], "{}", codes::ENVIRONMENT),
            (&[("CNI_COMMAND", "SING")][..], "{}", codes::ENVIRONMENT),
            (&whole[..], "{", codes::DECODE),
            (&[whole[0], ("CNI_CONTAINERID", "../x"), whole[2], whole[3]], "{}", codes::ENVIRONMENT),
            (&[whole[0], whole[1], whole[2], ("CNI_IFNAME", "a/b")], "{}", codes::ENVIRONMENT),
        ] {
            assert_eq!(read(environment, input).unwrap_err().code, code);
        }
        let old = read(&whole, r#"{"cniVersion":"0.2.0"}"#).unwrap();
        assert_eq!(old.check_version().unwrap_err().code, codes::VERSION);
    }
}
