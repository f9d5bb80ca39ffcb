//! Finds the devices of disks in `/dev` and `/sys`, and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::host::{Command, Host, names, wait_for, write};
use crate::volumes::VolumeError;

/// How long several paths to one disk have to become one device.
const MULTIPATH_TIMEOUT: Duration = Duration::from_secs(10);

/// The devices whose links in a directory below `/dev/disk` match, without `/dev/`.
pub fn linked(host: &impl Host, directory: &str, matches: impl Fn(&str) -> bool) -> Vec<String> {
    let directory = host.path(directory);
    let links = names(&directory).into_iter().filter(|name| matches(name));
    let devices: BTreeSet<String> = links
        .filter_map(|link| {
            let device = directory.join(link).canonicalize().ok()?;
            Some(device.file_name()?.to_string_lossy().into_owned())
        })
        .collect();
    devices.into_iter().collect()
}

/// The device to use of those that lead to the same disk: the one that joins them, if there is one.
pub async fn choose(host: &impl Host, paths: &[String]) -> Option<String> {
    let find = || paths.iter().find_map(|path| multipath_of(host, path));
    let joined = match paths.len() {
        0 | 1 => find(),
        _ => wait_for(MULTIPATH_TIMEOUT, find).await,
    };
    joined.or_else(|| paths.first().cloned())
}

/// The multipath device that a disk is a path of. Other mapped devices, such as logical volumes, are left alone.
fn multipath_of(host: &impl Host, device: &str) -> Option<String> {
    let blocks = host.path("/sys/block");
    names(&blocks).into_iter().filter(|name| name.starts_with("dm-")).find(|name| {
        let map = blocks.join(name);
        let uuid = std::fs::read_to_string(map.join("dm/uuid")).unwrap_or_default();
        uuid.starts_with("mpath-") && map.join("slaves").join(device).symlink_metadata().is_ok()
    })
}

/// Removes the devices of a disk that nothing uses any more, all paths to it included.
pub async fn remove(host: &impl Host, paths: &[String]) -> Result<(), VolumeError> {
    let mut paths: BTreeSet<String> = paths.iter().cloned().collect();
    let maps: BTreeSet<String> = paths.iter().filter_map(|path| multipath_of(host, path)).collect();
    for map in maps {
        paths.extend(names(&host.path("/sys/block").join(&map).join("slaves")));
        let device = format!("/dev/{map}");
        host.run(&Command::new("multipath", ["-f", device.as_str()])).await.map_err(|failure| {
            let (status, output) = (failure.status, failure.output);
            VolumeError::Path(format!("failed to flush multipath device {device}: {status}\n{output}"))
        })?;
    }
    for path in paths {
        let flush = Command::new("blockdev", ["--flushbufs".to_string(), format!("/dev/{path}")]);
        if let Err(failure) = host.run(&flush).await {
            // Its file system was unmounted, so nothing that was written is left in memory.
            tracing::warn!(status = %failure.status, output = failure.output, device = path, "cannot flush a device");
        }
        write(host, &format!("/sys/block/{path}/device/delete"), "1").await?;
    }
    Ok(())
}

/// The SCSI hosts of the sessions with an iSCSI target, by portal.
pub fn sessions(host: &impl Host, target: &str) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for (number, session) in sessions_with(host, target) {
        for connection in names(&session).into_iter().filter(|name| name.starts_with("connection")) {
            let directory = session.join(&connection).join("iscsi_connection").join(&connection);
            let read = |file: &str| std::fs::read_to_string(directory.join(file)).map(|text| text.trim().to_string());
            for [address, port] in [["address", "port"], ["persistent_address", "persistent_port"]] {
                if let (Ok(address), Ok(port)) = (read(address), read(port)) {
                    let address = if address.contains(':') { format!("[{address}]") } else { address };
                    found.insert(format!("{address}:{port}"), number);
                }
            }
        }
    }
    found
}

/// The devices of a logical unit of an iSCSI target, without `/dev/`.
pub fn units(host: &impl Host, target: &str, unit: i32) -> Vec<String> {
    let sessions = sessions_with(host, target).into_iter();
    let blocks = sessions.map(|(number, session)| {
        session.join(format!("target{number}:0:0")).join(format!("{number}:0:0:{unit}")).join("block")
    });
    blocks.flat_map(|block| names(&block)).collect()
}

fn sessions_with(host: &impl Host, target: &str) -> Vec<(u32, std::path::PathBuf)> {
    let hosts = host.path("/sys/class/iscsi_host");
    let mut found = Vec::new();
    for name in names(&hosts) {
        let Some(number) = name.strip_prefix("host").and_then(|number| number.parse().ok()) else { continue };
        let device = hosts.join(&name).join("device");
        for session in names(&device).into_iter().filter(|name| name.starts_with("session")) {
            let directory = device.join(&session);
            let file = directory.join("iscsi_session").join(&session).join("targetname");
            // A session that ends meanwhile has no such file any more.
            if std::fs::read_to_string(file).is_ok_and(|name| name.trim() == target) {
                found.push((number, directory));
            }
        }
    }
    found
}
