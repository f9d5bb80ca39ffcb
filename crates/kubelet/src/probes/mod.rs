//! Asking containers how they are: startup, liveness and readiness, by command, HTTP, TCP or gRPC.

mod counter;
mod grpc;
mod http;
mod task;

pub use http::{HttpTarget, http_get};
pub use task::ProbeTasks;

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
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            named.map(|port| port.container_port).or_else(|| name.parse().ok())
        }
    };
    let valid = number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0);
    valid.ok_or_else(|| "the port is not one of the container".to_string())
}
