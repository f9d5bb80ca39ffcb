//! The node's network: how pods are reached.
//!
//! In: services, endpoints and nodes from the API, and calls of the container runtime. Out: nftables rules and network
//! interfaces on this machine. `proxy` makes service addresses lead to pods.

pub mod proxy;
