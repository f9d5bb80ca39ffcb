//! The Identity service.

use knarr_csi::messages::*;
use knarr_csi::{Identity, Status};

use crate::DRIVER;
use crate::driver::Service;

#[async_trait::async_trait]
impl Identity for Service {
    async fn get_plugin_info(&self, _: GetPluginInfoRequest) -> Result<GetPluginInfoResponse, Status> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_string();
        Ok(GetPluginInfoResponse { name: DRIVER.into(), vendor_version, manifest: StringMap::new() })
    }

    async fn get_plugin_capabilities(
        &self,
        _: GetPluginCapabilitiesRequest,
    ) -> Result<GetPluginCapabilitiesResponse, Status> {
        let capabilities = vec![
            PluginCapability::service(PluginService::Controller),
            PluginCapability::service(PluginService::VolumeAccessibilityConstraints),
            PluginCapability::expansion(PluginExpansion::Online),
        ];
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }

    async fn probe(&self, _: ProbeRequest) -> Result<ProbeResponse, Status> {
        Ok(ProbeResponse { ready: Some(BoolValue { value: true }) })
    }
}
