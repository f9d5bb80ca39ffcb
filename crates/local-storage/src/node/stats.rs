//! NodeGetVolumeStats: usage and health of a mounted volume.

use std::path::Path;

use knarr_csi::messages::*;
use nix::sys::statvfs::statvfs;

use crate::driver::Driver;
use crate::error::Error;
use crate::plan::{present, signed};
use crate::record::Kind;

impl Driver {
    pub(super) fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Error> {
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
