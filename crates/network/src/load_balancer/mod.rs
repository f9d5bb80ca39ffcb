//! Addresses for Services of type LoadBalancer.
//!
//! `pool` allocates an address for each such Service, once per cluster; `announce` runs on every node and selects the node
//! that has an address: `assigned` adds it to the node and `neighbours` announces it on the link. The service proxy does
//! the rest.

pub mod announce;
pub(crate) mod assigned;
mod neighbours;
pub mod pool;

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use crate::cidr::Cidr;
use crate::netlink::NetlinkError;

/// The `loadBalancerClass` of this load balancer.
pub const CLASS: &str = "knarr.dev/pool";

/// Removes all addresses of these networks from this node.
pub async fn release(pool: &[Cidr]) -> Result<(), NetlinkError> {
    assigned::release_leftovers(pool, &BTreeSet::new()).await
}

/// Whether a Service needs an address from this load balancer.
fn is_ours(service: &Service) -> bool {
    is_our_class(service) && service.metadata.deletion_timestamp.is_none()
}

/// Whether a Service has our class or none.
pub(crate) fn is_our_class(service: &Service) -> bool {
    let Some(spec) = &service.spec else { return false };
    spec.type_.as_deref() == Some("LoadBalancer")
        && spec.load_balancer_class.as_deref().is_none_or(|class| class == CLASS)
}

/// The addresses in a Service's status.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    points.filter_map(|point| point.ip.as_deref()?.parse().ok()).collect()
}
