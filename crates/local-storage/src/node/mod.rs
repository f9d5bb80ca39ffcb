//! The Node service: volumes of this node for its pods.

mod publication;
mod stage;
mod stats;

use std::path::{Path, PathBuf};

use knarr_csi::messages::*;
use knarr_csi::{Node, Status};
use nix::mount::MsFlags;

use crate::driver::{Driver, Service};
use crate::error::Error;
use crate::plan::{self, present};
use crate::record::{Kind, Volume};
use crate::{loop_device, mount, mount_table};

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

impl Driver {
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

    fn mounted_at(&self, volume: &Volume, path: &Path) -> Result<mount_table::Mount, Error> {
        let missing = || Error::NotFound(format!("volume {} is not mounted at {}", volume.id, path.display()));
        let path = resolve(path).map_err(|_| missing())?;
        let table = mount_table::read()?;
        let is_ours = self.is_mount_of(volume)?;
        mount_table::at(&table, &path).filter(|mount| is_ours(mount)).cloned().ok_or_else(missing)
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
