//! Translates a pod's spec to the CRI configuration of its sandbox and containers.

pub mod config;
pub mod devices;
pub mod dns;
pub mod env;
pub mod env_file;
pub mod hosts;
pub mod mounts;
pub mod resources;
pub mod sandbox;
pub mod security;
pub mod user_namespace;
