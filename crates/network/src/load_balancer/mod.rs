//! Addresses for services of type LoadBalancer.
//!
//! `pool` gives each such service an address, in one place of the cluster; `announce` runs on every node and makes the one
//! node that is to answer for an address do so: `held` puts it on the machine and `neighbours` tells those around. The
//! service proxy does the rest.

pub mod announce;
pub(crate) mod held;
mod neighbours;
pub mod pool;

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

/// The class by which a service asks for us by name.
pub const CLASS: &str = "knarr.dev/pool";

/// Whether a service wants an address from us.
fn is_ours(service: &Service) -> bool {
    is_our_class(service) && service.metadata.deletion_timestamp.is_none()
}

/// Whether it is on us to give a service its address.
pub(crate) fn is_our_class(service: &Service) -> bool {
    let Some(spec) = &service.spec else { return false };
    spec.type_.as_deref() == Some("LoadBalancer")
        && spec.load_balancer_class.as_deref().is_none_or(|class| class == CLASS)
}

/// The addresses in a service's status.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    points.filter_map(|point| point.ip.as_deref()?.parse().ok()).collect()
}
