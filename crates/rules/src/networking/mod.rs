//! Rules of the group `networking.k8s.io`.

pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "IPAddress" => &ip_address::IpAddress,
        "Ingress" => &ingress::Ingress,
        "IngressClass" => &ingress_class::IngressClass,
        "NetworkPolicy" => &network_policy::NetworkPolicy,
        "ServiceCIDR" => &service_cidr::ServiceCidr,
        _ => return None,
    })
}
