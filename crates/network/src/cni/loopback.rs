//! The loopback plugin, which container runtimes call for every pod before any other plugin: it brings `lo` up.

use std::path::Path;

use serde_json::{Value, json};

use super::reply::{Failure, codes};
use super::request::{Command, Request};
use crate::namespace;
use crate::netlink::{Netlink, NetlinkError};

pub fn reply(request: &Request) -> Result<Option<Value>, Failure> {
    let Some(path) = request.namespace.as_deref() else { return Ok(None) };
    match request.command {
        Command::Add => {
            bring_up(path)?;
            let version = request.version();
            let mut result = json!({
                "cniVersion": version,
                "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": path}],
                "ips": [{"interface": 0, "address": "127.0.0.1/8"}, {"interface": 0, "address": "::1/128"}],
                "dns": {},
            });
            if version.starts_with("0.") {
                result["ips"][0]["version"] = json!("4");
                result["ips"][1]["version"] = json!("6");
            }
            Ok(Some(result))
        }
        _ => Ok(None),
    }
}

fn bring_up(path: &Path) -> Result<(), Failure> {
    let inside = namespace::open(path).map_err(|error| Failure::of(codes::UNKNOWN_CONTAINER, &error))?;
    let done = namespace::run_inside(&inside, || async {
        let netlink = Netlink::open()?;
        let link = netlink.link("lo").await?;
        netlink.bring_up(link.index).await
    });
    done.map_err(|error| Failure::of(codes::KERNEL, &error))?
        .map_err(|error: NetlinkError| Failure::of(codes::KERNEL, &error))
}
