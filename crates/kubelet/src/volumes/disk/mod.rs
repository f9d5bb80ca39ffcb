//! Disks of a storage network, iSCSI and Fibre Channel: attached by the host's tools and mounted once for all pods of the
//! node, then bound into each pod. The last pod that uses a disk detaches it.

mod devices;
#[cfg(test)]
mod fake_host;
mod fibre_channel;
mod host;
mod iscsi;
mod iscsi_plan;
mod record;
mod source;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use self::host::{Command, Host, RealHost};
use self::iscsi::Chap;
use self::record::{Disk, Record};
pub use self::source::{DiskSource, SecretName};
use self::step::{Step, carry_out};
use super::VolumeError;
use crate::beneath;
use crate::private;
use crate::settings::Settings;

/// The plugins whose disks a pod can have.
const PLUGINS: [&str; 2] = ["iscsi", "fc"];

/// The content of a volume's secret.
type Credentials = BTreeMap<String, String>;

/// Records that a pod is about to use a disk, which is in use from then on. Returns false if the pod has it already.
pub fn register(settings: &Settings, uid: &str, source: &DiskSource) -> Result<bool, VolumeError> {
    let record = Record::new(settings, &source.disk);
    record.add_user(uid, &source.unique_name)?;
    Ok(!is_mounted_on(&RealHost, settings, uid, source)?)
}

/// The names in the node's status of all disks that pods use.
pub fn recorded(settings: &Settings) -> BTreeSet<String> {
    let records = PLUGINS.iter().flat_map(|plugin| match Record::all(settings, plugin) {
        Ok(records) => records,
        Err(error) => {
            tracing::error!(%error, plugin, "cannot read which disks are in use");
            Vec::new()
        }
    });
    records.flat_map(|record| record.unique_names()).collect()
}

/// Attaches and mounts a disk for a pod. Returns the directory, or the device if the volume is a raw one.
pub async fn mount(
    settings: &Settings,
    uid: &str,
    source: &DiskSource,
    secret: Credentials,
) -> Result<PathBuf, VolumeError> {
    mount_on(&RealHost, settings, uid, source, secret).await
}

/// Unmounts the disks of a pod whose containers have terminated, and detaches those that no other pod has.
pub async fn unmount_pod(settings: &Settings, uid: &str) -> Result<(), VolumeError> {
    unmount_pod_on(&RealHost, settings, uid).await
}

async fn mount_on(
    host: &impl Host,
    settings: &Settings,
    uid: &str,
    source: &DiskSource,
    secret: Credentials,
) -> Result<PathBuf, VolumeError> {
    let record = Record::new(settings, &source.disk);
    let _operation = lock(&source.disk).await;
    let is_new = record.add_user(uid, &source.unique_name)?;
    if source.block {
        // A pod that has the device keeps it: paths that are missing are not looked for each time.
        return match known_device(host, &source.disk).await {
            Some(device) if !is_new => Ok(PathBuf::from(format!("/dev/{device}"))),
            _ => attach(host, source, secret).await.map(PathBuf::from),
        };
    }
    let target = target(settings, uid, source)?;
    if host.is_mounted(&target) {
        return Ok(target);
    }
    let global = record.mount_point();
    if !host.is_mounted(&global) {
        let device = attach(host, source, secret).await?;
        private::create_all(&global).map_err(VolumeError::file(&global))?;
        host.mount(&device, &source.system, &global).await?;
    }
    private::create_all(&target).map_err(VolumeError::file(&target))?;
    host.bind(&global, &target)?;
    Ok(target)
}

fn target(settings: &Settings, uid: &str, source: &DiskSource) -> Result<PathBuf, VolumeError> {
    let directory = pod_directory(settings, uid, source.disk.plugin());
    let invalid = || VolumeError::Path(format!("the name {} is not a name of a directory", source.name));
    beneath::join(&directory, &source.name).ok_or_else(invalid)
}

fn pod_directory(settings: &Settings, uid: &str, plugin: &str) -> PathBuf {
    settings.pod_directory(uid).join("volumes").join(format!("kubernetes.io~{plugin}"))
}

/// Whether a pod has a disk's file system. Of a raw device that is unknown.
fn is_mounted_on(host: &impl Host, settings: &Settings, uid: &str, source: &DiskSource) -> Result<bool, VolumeError> {
    Ok(!source.block && host.is_mounted(&target(settings, uid, source)?))
}

async fn attach(host: &impl Host, source: &DiskSource, secret: Credentials) -> Result<String, VolumeError> {
    let device = match &source.disk {
        Disk::Iscsi(unit) => unit.attach(host, &Chap { secret, ..source.chap.clone() }).await?,
        Disk::FibreChannel(disk) => disk.attach(host).await?,
    };
    Ok(format!("/dev/{device}"))
}

async fn known_device(host: &impl Host, disk: &Disk) -> Option<String> {
    let paths = match disk {
        Disk::Iscsi(unit) => unit.paths(host),
        Disk::FibreChannel(disk) => disk.paths(host),
    };
    devices::choose(host, &paths).await
}

async fn unmount_pod_on(host: &impl Host, settings: &Settings, uid: &str) -> Result<(), VolumeError> {
    for plugin in PLUGINS {
        let of_pod = |record: &Record| record.has_user(uid);
        for record in Record::all(settings, plugin)?.into_iter().filter(of_pod) {
            let _operation = lock(&record.disk).await;
            host.unbind_below(&pod_directory(settings, uid, plugin))?;
            match record.has_other_users(uid) {
                true => record.remove_user(uid)?,
                false => detach(host, settings, &record).await?,
            }
        }
    }
    Ok(())
}

async fn detach(host: &impl Host, settings: &Settings, record: &Record) -> Result<(), VolumeError> {
    let global = record.mount_point();
    if host.is_mounted(&global) {
        let path = global.to_string_lossy().into_owned();
        // A container's mount namespace may still have the file system: what was written must be on the disk when its
        // device is removed.
        let steps = [("sync", "-f"), ("umount", "--")].map(|(program, option)| {
            let failure = format!("{program} of {path} failed: {{output}} ({{status}})");
            Step::required(Command::new(program, [option, path.as_str()]), failure)
        });
        carry_out(host, &steps).await?;
    }
    match &record.disk {
        Disk::Iscsi(unit) => {
            let others = Record::all(settings, record.disk.plugin())?;
            let is_shared = others.iter().any(|other| match &other.disk {
                Disk::Iscsi(other) => other != unit && other.shares_sessions(unit),
                Disk::FibreChannel(_) => false,
            });
            unit.detach(host, is_shared).await?;
        }
        Disk::FibreChannel(disk) => disk.detach(host).await?,
    }
    record.remove()
}

/// Waits until no other operation on the disk, or on its iSCSI target, is in progress: one that ends a session must not
/// overtake one that needs it.
async fn lock(disk: &Disk) -> OwnedMutexGuard<()> {
    static LOCKS: LazyLock<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>> = LazyLock::new(Mutex::default);
    let key = match disk {
        Disk::Iscsi(unit) => unit.target.clone(),
        Disk::FibreChannel(disk) => format!("{disk:?}"),
    };
    let lock = {
        let mut locks = LOCKS.lock();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(key).or_default().clone()
    };
    lock.lock_owned().await
}
