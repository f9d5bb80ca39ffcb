//! The node's network: how pods are reached.
//!
//! In: services, endpoints and nodes from the API, and calls of the container runtime. Out: nftables rules and network
//! interfaces on this machine.
//! - `cni` gives a pod its interface and address when the container runtime asks for them;
//! - `pod_network` prepares the machine for that and keeps the way to other nodes' pods (`pod_network::routes`);
//! - `proxy` makes service addresses lead to pods;
//! - `policy` says which pods may talk to which;
//! - `load_balancer` gives services of that type an address;
//! - `clean` takes everything away again.

pub(crate) mod capture;
pub mod cidr;
pub mod clean;
pub mod cni;
mod listening;
pub mod load_balancer;
mod local_address;
mod namespace;
mod netlink;
mod nft;
mod sysctl;

pub mod pod_network;
pub mod policy;
pub mod proxy;

pub use cni::cni_main;
pub use cni::configuration::{CniSettings, write_cni_configuration};
pub use local_address::{AddressError, add_local_address};
pub use pod_network::routes as pod_routes;
