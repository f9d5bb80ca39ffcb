//! From a pod's description to what the runtime is told: the sandbox first, then each container.

pub mod config;
pub mod dns;
pub mod env;
pub mod env_file;
pub mod hosts;
pub mod mounts;
pub mod resources;
pub mod sandbox;
pub mod security;
pub mod user_namespace;
