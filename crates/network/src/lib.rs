//! The node's network: pod interfaces, routes between nodes, Services, NetworkPolicies and load balancers.
//!
//! Input: Services, EndpointSlices and Nodes from the API, and CNI calls of the container runtime. Output: nftables rules
//! and network interfaces on this node.
//! - `cni` creates a pod's interface and address when the container runtime calls it;
//! - `pod_network` prepares the node for that and keeps the routes to other nodes' pods (`pod_network::routes`);
//! - `proxy` forwards Service addresses to endpoints;
//! - `policy` enforces NetworkPolicies;
//! - `load_balancer` allocates and announces addresses of Services of that type;
//! - `clean` removes everything again.

pub(crate) mod capture;
pub mod cidr;
pub mod clean;
pub mod cni;
mod interfaces;
pub mod listening;
pub mod load_balancer;
mod local_address;
mod namespace;
mod netlink;
mod nft;
pub mod protocol;
mod sysctl;

pub mod pod_network;
pub mod policy;
pub mod proxy;

pub use cni::cni_main;
pub use cni::configuration::{CniSettings, write_cni_configuration};
pub use local_address::{AddressError, add_local_address, remove_local_address};
pub use pod_network::routes as pod_routes;
