//! This server, as its flags describe it.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::bail;

use super::{ServersArguments, bundle};

/// What a cluster of several servers needs to know of this one. The command line fills it.
#[derive(Clone)]
pub struct ThisServer {
    /// The name of its node and of its etcd member.
    pub name: String,
    pub data: PathBuf,
    /// The directory of the embedded store, whether it exists or not.
    pub store: PathBuf,
    /// The etcd that it was given; empty if it uses its own store, or an etcd that Knarr runs.
    pub datastore: Vec<String>,
    /// The address that the flags name.
    pub given_address: Option<IpAddr>,
    /// The encryption configuration that the flags name.
    pub encryption: Option<PathBuf>,
    /// The networks of Services.
    pub service_ranges: Vec<String>,
    pub flags: ServersArguments,
}

impl ThisServer {
    /// The encryption configuration, whether it exists or not.
    pub fn encryption_file(&self) -> PathBuf {
        self.encryption.clone().unwrap_or_else(|| bundle::encryption_file(&self.data))
    }

    /// The address at which other servers reach this one. The others would keep one of a host without a network.
    pub fn address(&self) -> anyhow::Result<IpAddr> {
        if let Some(given) = self.given_address {
            return Ok(given);
        }
        let own = crate::address::own_address();
        if own.is_loopback() || own == crate::address::FALLBACK_ADDRESS {
            bail!(
                "this host has no address at which other servers could reach it: connect it to a network, or set --node-ip"
            );
        }
        Ok(own)
    }
}
