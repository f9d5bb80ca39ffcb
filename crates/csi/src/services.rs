//! The calls of each service, written once: a client method, a trait method and a route come from every line.

use tonic::Status;

use crate::client::{Client, Result};
use crate::messages::*;
use crate::route::{Route, Routed};

macro_rules! service {
    ($(#[$about:meta])* $service:ident as $prefix:literal, routed by $route:ident {
        $($(#[$call_about:meta])* $name:ident = $method:literal ($request:ty) -> $response:ty;)*
    }) => {
        $(#[$about])*
        #[async_trait::async_trait]
        pub trait $service: Send + Sync + 'static {
            $($(#[$call_about])*
            async fn $name(&self, _request: $request) -> std::result::Result<$response, Status> {
                Err(Status::unimplemented(concat!("unknown method ", $method)))
            })*
        }

        impl Client {
            $($(#[$call_about])*
            pub async fn $name(&self, request: $request) -> Result<$response> {
                self.call($method, concat!("/", $prefix, "/", $method), request).await
            })*
        }

        /// Calls the method of this path; `None` when the service has no such method.
        pub(crate) fn $route(service: std::sync::Arc<dyn $service>, route: Route) -> Option<Routed> {
            match route.method.as_str() {
                $(concat!("/", $prefix, "/", $method) => Some(Box::pin(
                    route.unary($method, move |request: $request| async move { service.$name(request).await }),
                )),)*
                _ => None,
            }
        }
    };
}

service! {
    /// What the driver is. Every driver has this service.
    Identity as "csi.v1.Identity", routed by route_identity {
        /// The driver's name and version.
        get_plugin_info = "GetPluginInfo" (GetPluginInfoRequest) -> GetPluginInfoResponse;
        /// Which services the driver has.
        get_plugin_capabilities = "GetPluginCapabilities" (GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
        /// Whether the driver is ready.
        probe = "Probe" (ProbeRequest) -> ProbeResponse;
    }
}

service! {
    /// Volumes and snapshots as a whole. All calls are idempotent.
    Controller as "csi.v1.Controller", routed by route_controller {
        /// Creates a volume, or returns the one of this name.
        create_volume = "CreateVolume" (CreateVolumeRequest) -> CreateVolumeResponse;
        /// Deletes a volume; succeeds when it does not exist.
        delete_volume = "DeleteVolume" (DeleteVolumeRequest) -> DeleteVolumeResponse;
        /// Attaches a volume to a node.
        controller_publish_volume = "ControllerPublishVolume" (ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse;
        /// Detaches a volume from a node.
        controller_unpublish_volume = "ControllerUnpublishVolume" (ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse;
        /// Whether a volume can be accessed in all these ways.
        validate_volume_capabilities = "ValidateVolumeCapabilities" (ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse;
        /// Lists volumes by pages.
        list_volumes = "ListVolumes" (ListVolumesRequest) -> ListVolumesResponse;
        /// The capacity for new volumes of a class at a place.
        get_capacity = "GetCapacity" (GetCapacityRequest) -> GetCapacityResponse;
        /// What the Controller service can do.
        controller_get_capabilities = "ControllerGetCapabilities" (ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse;
        /// Creates a snapshot, or returns the one of this name.
        create_snapshot = "CreateSnapshot" (CreateSnapshotRequest) -> CreateSnapshotResponse;
        /// Deletes a snapshot; succeeds when it does not exist.
        delete_snapshot = "DeleteSnapshot" (DeleteSnapshotRequest) -> DeleteSnapshotResponse;
        /// Lists snapshots by pages.
        list_snapshots = "ListSnapshots" (ListSnapshotsRequest) -> ListSnapshotsResponse;
        /// One snapshot.
        get_snapshot = "GetSnapshot" (GetSnapshotRequest) -> GetSnapshotResponse;
        /// Expands a volume, or reports that the node has to.
        controller_expand_volume = "ControllerExpandVolume" (ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
        /// One volume and its status.
        controller_get_volume = "ControllerGetVolume" (ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
        /// Changes a volume to the parameters of a VolumeAttributesClass.
        controller_modify_volume = "ControllerModifyVolume" (ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    }
}

service! {
    /// Volumes on one node. All calls are idempotent.
    Node as "csi.v1.Node", routed by route_node {
        /// Prepares a volume once for all pods of the node.
        node_stage_volume = "NodeStageVolume" (NodeStageVolumeRequest) -> NodeStageVolumeResponse;
        /// Undoes `NodeStageVolume`.
        node_unstage_volume = "NodeUnstageVolume" (NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
        /// Makes a volume available to one pod.
        node_publish_volume = "NodePublishVolume" (NodePublishVolumeRequest) -> NodePublishVolumeResponse;
        /// Undoes `NodePublishVolume`.
        node_unpublish_volume = "NodeUnpublishVolume" (NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
        /// The usage and health of a volume.
        node_get_volume_stats = "NodeGetVolumeStats" (NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
        /// Expands a volume on the node.
        node_expand_volume = "NodeExpandVolume" (NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
        /// What the Node service can do.
        node_get_capabilities = "NodeGetCapabilities" (NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
        /// The node as the driver knows it.
        node_get_info = "NodeGetInfo" (NodeGetInfoRequest) -> NodeGetInfoResponse;
    }
}

service! {
    /// What a plugin serves on its socket in `plugins_registry`.
    Registration as "pluginregistration.Registration", routed by route_registration {
        /// What the plugin is and where it serves.
        get_info = "GetInfo" (InfoRequest) -> PluginInfo;
        /// Receives the outcome of the registration.
        notify_registration_status = "NotifyRegistrationStatus" (RegistrationStatus) -> RegistrationStatusResponse;
    }
}
