//! ControllerExpandVolume: a larger image; the filesystem in it grows on the node.

use std::fs::File;

use knarr_csi::messages::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};

use crate::driver::Driver;
use crate::error::Error;
use crate::loop_device;
use crate::plan::{self, present, signed};
use crate::record::Kind;

impl Driver {
    pub(super) fn expand_volume(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Error> {
        present(&request.volume_id, "the volume ID")?;
        let Some(range) = request.capacity_range else {
            return Err(Error::Invalid("the capacity range is missing".into()));
        };
        let _busy = self.lock(&request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        if volume.kind == Kind::Directory {
            let capacity_bytes = range.required_bytes;
            return Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false });
        }
        let bytes = plan::size(Some(&range), volume.bytes)?;
        let image = self.image(&volume);
        if bytes > volume.bytes {
            let _reserved = self.reserve(bytes - volume.bytes)?;
            let file = File::options().write(true).open(&image).map_err(Error::file("open", &image))?;
            file.set_len(bytes).and_then(|()| file.sync_all()).map_err(Error::file("resize", &image))?;
            volume.bytes = bytes;
            volume.grow = matches!(volume.kind, Kind::Filesystem { .. });
            self.update(volume.clone())?;
        }
        // A device that is attached gets the size at once; a filesystem grows on the node.
        if let Some(device) = loop_device::find(&image)? {
            device.update_size()?;
        }
        let capacity_bytes = signed(volume.bytes);
        Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: volume.kind != Kind::Block })
    }
}
