//! Block volumes as devices of a container.

use k8s_openapi::api::core::v1::Container;
use knarr_cri::messages::Device;

use crate::volumes::MountedVolumes;

/// The devices for the container's `volumeDevices`.
pub fn devices_for(volumes: &MountedVolumes, container: &Container) -> Vec<Device> {
    let requested = container.volume_devices.iter().flatten();
    requested
        .filter_map(|device| {
            let volume = volumes.volumes.get(&device.name)?;
            Some(Device {
                container_path: device.device_path.clone(),
                host_path: volume.path.to_string_lossy().into_owned(),
                permissions: if volume.read_only { "r" } else { "mrw" }.to_string(),
            })
        })
        .collect()
}
