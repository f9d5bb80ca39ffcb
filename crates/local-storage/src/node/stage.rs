//! Staging: the filesystem of a volume mounted once per node, or its block device attached, and growing it there.

use std::fs;
use std::path::Path;

use knarr_csi::messages::*;
use nix::mount::MsFlags;

use super::{capability, check, mount_flags, occupied, resolve};
use crate::driver::Driver;
use crate::error::Error;
use crate::loop_device::{self, Lifetime};
use crate::plan::{self, present, signed};
use crate::record::{Kind, Volume};
use crate::{filesystem, mount, mount_table};

impl Driver {
    pub(super) fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), Error> {
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

    pub(super) fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Result<(), Error> {
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

    pub(super) fn expand_on_node(&self, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Error> {
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
