//! The Node service: volumes of this node for its pods.

use std::fs;
use std::path::{Path, PathBuf};

use knarr_csi::messages::*;
use knarr_csi::{Node, Status};
use nix::mount::MsFlags;
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::controller::{present, signed};
use crate::driver::{Driver, Service};
use crate::error::Error;
use crate::loop_device::{self, Lifetime};
use crate::record::{Kind, Volume};
use crate::{filesystem, mount, mount_table, plan};

const CAPABILITIES: &[NodeCapability] = &[
    NodeCapability::StageUnstageVolume,
    NodeCapability::GetVolumeStats,
    NodeCapability::ExpandVolume,
    NodeCapability::VolumeCondition,
    NodeCapability::SingleNodeMultiWriter,
];
/// Flags that every mount of a filesystem has for itself.
const PER_MOUNT: MsFlags = MsFlags::MS_RDONLY
    .union(MsFlags::MS_NOSUID)
    .union(MsFlags::MS_NODEV)
    .union(MsFlags::MS_NOEXEC)
    .union(MsFlags::MS_NOATIME)
    .union(MsFlags::MS_NODIRATIME)
    .union(MsFlags::MS_RELATIME);

#[async_trait::async_trait]
impl Node for Service {
    async fn node_stage_volume(&self, request: NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
        self.run(move |driver| driver.stage(&request).map(|()| NodeStageVolumeResponse {})).await
    }

    async fn node_unstage_volume(
        &self,
        request: NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        self.run(move |driver| driver.unstage(&request).map(|()| NodeUnstageVolumeResponse {})).await
    }

    async fn node_publish_volume(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        self.run(move |driver| driver.publish(&request).map(|()| NodePublishVolumeResponse {})).await
    }

    async fn node_unpublish_volume(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        self.run(move |driver| driver.unpublish(&request).map(|()| NodeUnpublishVolumeResponse {})).await
    }

    async fn node_get_volume_stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        self.run(move |driver| driver.stats(&request)).await
    }

    async fn node_expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Status> {
        self.run(move |driver| driver.expand_on_node(&request)).await
    }

    async fn node_get_capabilities(
        &self,
        _: NodeGetCapabilitiesRequest,
    ) -> Result<NodeGetCapabilitiesResponse, Status> {
        Ok(NodeGetCapabilitiesResponse::of(CAPABILITIES))
    }

    async fn node_get_info(&self, _: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, Status> {
        let (node_id, accessible_topology) = (self.0.settings.node.clone(), Some(self.0.topology()));
        Ok(NodeGetInfoResponse { node_id, max_volumes_per_node: 0, accessible_topology })
    }
}

/// A volume at a target: a pod that has it.
#[derive(Serialize, Deserialize)]
struct Publication {
    target: PathBuf,
    /// No other pod may have the volume meanwhile.
    exclusive: bool,
}

impl Driver {
    fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), Error> {
        present(&request.volume_id, "the volume ID")?;
        present(&request.staging_target_path, "the staging target path")?;
        let capability = capability(request.volume_capability.as_ref())?;
        let _busy = self.lock(&request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        check(&volume, capability)?;
        if volume.kind == Kind::Block {
            return loop_device::attach(&self.image(&volume), Lifetime::UntilDetached)?.update_size();
        }
        let staging = Path::new(&request.staging_target_path);
        mount::create_directory(staging)?;
        let staging = resolve(staging)?;
        let mounted = match mount_table::at(&mount_table::read()?, &staging) {
            Some(found) if self.is_mount_of(&volume)?(found) => true,
            Some(_) => return Err(occupied(&staging)),
            None => false,
        };
        match &volume.kind {
            Kind::Filesystem { fs_type } => self.stage_filesystem(&volume, fs_type, capability, &staging, mounted),
            _ if mounted => Ok(()),
            _ => mount::bind(&self.data(&volume), &staging, MsFlags::empty()),
        }
    }

    /// Mounts a filesystem and grows it. One that is mounted may still have to grow: the driver that mounted it was killed.
    fn stage_filesystem(
        &self,
        volume: &Volume,
        fs_type: &str,
        capability: &VolumeCapability,
        staging: &Path,
        mounted: bool,
    ) -> Result<(), Error> {
        let device = loop_device::attach(&self.image(volume), Lifetime::WhileOpen)?;
        device.update_size()?;
        let mut options = mount::options(mount_flags(capability))?;
        // Deleted files give their space back to the disk of the node.
        let separator = if options.data.is_empty() { "" } else { "," };
        options.data = format!("discard{separator}{}", options.data);
        if !mounted {
            mount::device(&device.path, fs_type, staging, &options)?;
        }
        if options.flags.contains(MsFlags::MS_RDONLY) {
            return Ok(());
        }
        match self.grow(volume, fs_type, &device.path, staging) {
            // Pods have it already: it grows when it is mounted next.
            Err(Error::Precondition(_)) if self.mounts(volume)?.len() > 1 => return Ok(()),
            Err(Error::Precondition(_)) => {
                mount::unmount(staging)?;
                filesystem::grow_unmounted(fs_type, &device.path)?;
                self.update(Volume { grow: false, ..volume.clone() })?;
                mount::device(&device.path, fs_type, staging, &options)?;
            }
            Err(error) if !mounted => {
                mount::unmount(staging)?;
                return Err(error);
            }
            grown => grown?,
        }
        // Programs that want an empty directory, as databases do, would refuse it. It stays if it is not empty.
        let _ = fs::remove_dir(staging.join("lost+found"));
        Ok(())
    }

    /// Grows the filesystem if it may be smaller than its image. Done while it is mounted, as the journal then protects it.
    fn grow(&self, volume: &Volume, fs_type: &str, device: &Path, mounted: &Path) -> Result<(), Error> {
        if !volume.grow {
            return Ok(());
        }
        filesystem::grow_mounted(fs_type, device, mounted)?;
        self.update(Volume { grow: false, ..volume.clone() })
    }

    fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Result<(), Error> {
        present(&request.volume_id, "the volume ID")?;
        present(&request.staging_target_path, "the staging target path")?;
        let _busy = self.lock(&request.volume_id)?;
        if let Ok(staging) = resolve(Path::new(&request.staging_target_path)) {
            mount::unmount(&staging)?;
        }
        match self.volume(&request.volume_id) {
            Ok(volume) if volume.kind == Kind::Block => self.detach(&volume),
            _ => Ok(()),
        }
    }

    fn detach(&self, volume: &Volume) -> Result<(), Error> {
        match self.mounts(volume)?.first() {
            Some(mount) => Err(Error::Precondition(format!("the device is published at {}", mount.target.display()))),
            None => loop_device::detach_all(&self.image(volume)),
        }
    }

    fn publish(&self, request: &NodePublishVolumeRequest) -> Result<(), Error> {
        present(&request.volume_id, "the volume ID")?;
        present(&request.target_path, "the target path")?;
        let capability = capability(request.volume_capability.as_ref())?;
        let _busy = self.lock(&request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        check(&volume, capability)?;
        if request.staging_target_path.is_empty() {
            return Err(Error::Precondition("the staging target path is missing".into()));
        }
        let mut flags = mount::options(mount_flags(capability))?.flags.intersection(PER_MOUNT);
        flags.set(MsFlags::MS_RDONLY, request.readonly || capability.mode() == Mode::SingleNodeReaderOnly);
        let source = self.staged(&volume, Path::new(&request.staging_target_path))?;
        let target = resolve(Path::new(&request.target_path))?;
        self.claim(&volume, &target, capability.mode() == Mode::SingleNodeSingleWriter)?;
        if let Some(found) = mount_table::at(&mount_table::read()?, &target) {
            return self.published_before(&volume, found, flags);
        }
        let bound = match volume.kind {
            Kind::Block => mount::create_file(&target),
            _ => mount::create_directory(&target),
        }
        .and_then(|()| mount::bind(&source, &target, flags));
        if bound.is_err() {
            self.disclaim(&volume, &target);
            mount::remove_target(&target)?;
        }
        bound
    }

    /// Whether what is mounted at a target is what was requested.
    fn published_before(&self, volume: &Volume, found: &mount_table::Mount, flags: MsFlags) -> Result<(), Error> {
        if !self.is_mount_of(volume)?(found) {
            return Err(occupied(&found.target));
        }
        if found.read_only != flags.contains(MsFlags::MS_RDONLY) {
            let target = found.target.display();
            return Err(Error::Exists(format!("the volume is published at {target} with other access")));
        }
        Ok(())
    }

    /// What is bound to targets.
    fn staged(&self, volume: &Volume, staging: &Path) -> Result<PathBuf, Error> {
        let missing = || Error::Precondition(format!("volume {} is not staged", volume.id));
        if volume.kind == Kind::Block {
            return loop_device::find(&self.image(volume))?.map(|device| device.path).ok_or_else(missing);
        }
        let staging = resolve(staging).map_err(|_| missing())?;
        match mount_table::at(&mount_table::read()?, &staging) {
            Some(found) if self.is_mount_of(volume)?(found) => Ok(staging),
            _ => Err(missing()),
        }
    }

    /// Records a publication before it is mounted, and refuses one where another excludes it.
    fn claim(&self, volume: &Volume, target: &Path, exclusive: bool) -> Result<(), Error> {
        let directory = self.volume_directory(volume).join("published");
        fs::create_dir_all(&directory).map_err(Error::file("create", &directory))?;
        let table = mount_table::read()?;
        for entry in fs::read_dir(&directory).map_err(Error::file("list", &directory))?.flatten() {
            let text = fs::read(entry.path()).map_err(Error::file("read", &entry.path()))?;
            let other = serde_json::from_slice::<Publication>(&text).ok();
            let Some(other) = other.filter(|other| mount_table::at(&table, &other.target).is_some()) else {
                // Left by a crash or by a restart of the host.
                let _ = fs::remove_file(entry.path());
                continue;
            };
            if other.target != target && (exclusive || other.exclusive) {
                return Err(Error::Precondition(format!(
                    "volume {} is for a single pod and is published at {}",
                    volume.id,
                    other.target.display()
                )));
            }
        }
        let path = directory.join(file_name(target));
        let publication = Publication { target: target.to_path_buf(), exclusive };
        let text = serde_json::to_vec(&publication).map_err(|error| Error::Internal(error.to_string()))?;
        fs::write(&path, text).map_err(Error::file("write", &path))
    }

    fn unpublish(&self, request: &NodeUnpublishVolumeRequest) -> Result<(), Error> {
        present(&request.volume_id, "the volume ID")?;
        present(&request.target_path, "the target path")?;
        let _busy = self.lock(&request.volume_id)?;
        // Without its parent there is no target.
        let Ok(target) = resolve(Path::new(&request.target_path)) else { return Ok(()) };
        mount::unmount(&target)?;
        mount::remove_target(&target)?;
        if let Ok(volume) = self.volume(&request.volume_id) {
            self.disclaim(&volume, &target);
        }
        Ok(())
    }

    /// Removes the record of a publication. One that stays is ignored, as nothing is mounted there.
    fn disclaim(&self, volume: &Volume, target: &Path) {
        let _ = fs::remove_file(self.volume_directory(volume).join("published").join(file_name(target)));
    }

    fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Error> {
        present(&request.volume_id, "the volume ID")?;
        present(&request.volume_path, "the volume path")?;
        let volume = self.volume(&request.volume_id)?;
        let mount = self.mounted_at(&volume, Path::new(&request.volume_path))?;
        let mut condition = self.condition(&volume);
        if mount.filesystem_read_only && !mount.read_only && !condition.abnormal {
            let message = "the filesystem became read-only after an error".into();
            condition = VolumeCondition { abnormal: true, message };
        }
        let usage = match volume.kind {
            Kind::Block => vec![usage(UsageUnit::Bytes, volume.bytes, 0, volume.bytes)],
            _ => filesystem_usage(&mount.target)?,
        };
        Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) })
    }

    fn mounted_at(&self, volume: &Volume, path: &Path) -> Result<mount_table::Mount, Error> {
        let missing = || Error::NotFound(format!("volume {} is not mounted at {}", volume.id, path.display()));
        let path = resolve(path).map_err(|_| missing())?;
        let table = mount_table::read()?;
        let is_ours = self.is_mount_of(volume)?;
        mount_table::at(&table, &path).filter(|mount| is_ours(mount)).cloned().ok_or_else(missing)
    }

    fn expand_on_node(&self, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Error> {
        present(&request.volume_id, "the volume ID")?;
        present(&request.volume_path, "the volume path")?;
        let _busy = self.lock(&request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        if volume.kind != Kind::Directory && !plan::fits(volume.bytes, request.capacity_range.as_ref()) {
            return Err(Error::Range(format!("the volume has {} bytes", volume.bytes)));
        }
        let capacity_bytes = signed(volume.bytes);
        let image = self.image(&volume);
        match &volume.kind {
            Kind::Directory => {}
            // There is no mount of a block device in its staging directory.
            Kind::Block => {
                if let Some(device) = loop_device::find(&image)? {
                    device.update_size()?;
                }
            }
            Kind::Filesystem { fs_type } => {
                let mount = self.mounted_at(&volume, Path::new(&request.volume_path))?;
                let device = loop_device::find(&image)?;
                let device = device.ok_or_else(|| Error::Internal("a mounted image has no loop device".into()))?;
                device.update_size()?;
                // Whatever the record says: the caller wants to be sure.
                self.grow(&Volume { grow: true, ..volume.clone() }, fs_type, &device.path, &mount.target)?;
            }
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes })
    }
}

fn capability(capability: Option<&VolumeCapability>) -> Result<&VolumeCapability, Error> {
    capability.ok_or_else(|| Error::Invalid("the volume capability is missing".into()))
}

fn check(volume: &Volume, capability: &VolumeCapability) -> Result<(), Error> {
    plan::supported(std::slice::from_ref(capability))?;
    match plan::mismatch(&volume.kind, capability) {
        Some(reason) => Err(Error::Invalid(reason)),
        None => Ok(()),
    }
}

fn mount_flags(capability: &VolumeCapability) -> &[String] {
    match &capability.access_type {
        Some(AccessType::Mount(mount)) => &mount.mount_flags,
        _ => &[],
    }
}

/// The path as the kernel names it: links of its parents resolved.
fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::Invalid(format!("{} is not a path to mount at", path.display())));
    };
    if !path.is_absolute() {
        return Err(Error::Invalid(format!("{} is not absolute", path.display())));
    }
    Ok(parent.canonicalize().map_err(Error::file("resolve", parent))?.join(name))
}

fn occupied(path: &Path) -> Error {
    Error::Internal(format!("something else is mounted at {}", path.display()))
}

/// A file name for a path.
fn file_name(target: &Path) -> String {
    let digest = Sha256::digest(target.as_os_str().as_encoded_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn filesystem_usage(mounted: &Path) -> Result<Vec<VolumeUsage>, Error> {
    let found = statvfs(mounted).map_err(Error::system("read the usage of", mounted))?;
    let block = found.fragment_size();
    let bytes = |blocks: u64| blocks.saturating_mul(block);
    let used_bytes = bytes(found.blocks().saturating_sub(found.blocks_free()));
    let used_inodes = found.files().saturating_sub(found.files_free());
    Ok(vec![
        usage(UsageUnit::Bytes, bytes(found.blocks()), bytes(found.blocks_available()), used_bytes),
        usage(UsageUnit::Inodes, found.files(), found.files_available(), used_inodes),
    ])
}

fn usage(unit: UsageUnit, total: u64, available: u64, used: u64) -> VolumeUsage {
    VolumeUsage { available: signed(available), total: signed(total), used: signed(used), unit: unit as i32 }
}
