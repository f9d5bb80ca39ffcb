//! Startup, liveness and readiness probes by command, HTTP, TCP or gRPC.

mod connect;
mod counter;
pub mod grpc;
mod http;
pub mod schedule;

pub use connect::connect;
pub use http::{HttpTarget, http_get};

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// A port by number, or by the name the container gives it.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            let number = named.map(|port| port.container_port).or_else(|| name.parse().ok());
            number.ok_or_else(|| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?
        }
    };
    let valid = u16::try_from(number).ok().filter(|number| *number > 0);
    valid.ok_or_else(|| format!("invalid port number: {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_found_by_number_and_by_name() {
        let container: Container = serde_json::from_value(
            json!({ "name": "c", "ports": [{ "name": "http", "containerPort": 80 }, { "containerPort": 81 }] }),
        )
        .expect("a container");
        let cases = [
            (IntOrString::Int(8080), Ok(8080)),
            (IntOrString::Int(0), Err("invalid port number: 0")),
            (IntOrString::String("http".into()), Ok(80)),
            (IntOrString::String("90".into()), Ok(90)),
            (IntOrString::String("none".into()), Err("strconv.Atoi: parsing \"none\": invalid syntax")),
        ];
        for (port, expected) in cases {
            assert_eq!(resolve_port(&port, &container), expected.map_err(str::to_string), "{port:?}");
        }
    }
}
