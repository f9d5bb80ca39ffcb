//! Serves one driver: connects to it, asks what it can do, and runs its controllers.

use std::sync::Arc;
use std::time::Duration;

use knarr_client::{EventRecorder, Informers, LeaderElection};
use knarr_csi::Client as CsiClient;
use knarr_csi::messages::{
    ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, PluginService,
};
use kube::Client;
use tokio::sync::Notify;

use crate::driver::{Driver, Place};
use crate::error::Result;
use crate::settings::Settings;
use crate::{attach, capacity, delete, modify, provision, resize, snapshot};

/// How long a driver may work on one call; the call is repeated after that.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Serves the driver until it fails or the future is dropped.
pub(crate) async fn serve(
    client: &Client,
    settings: &Settings,
    name: &str,
    place: &Place,
    endpoint: &str,
) -> Result<()> {
    let csi = CsiClient::connect(endpoint)?.with_timeout(CALL_TIMEOUT);
    let plugin = csi.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await?;
    if !plugin.has_service(PluginService::Controller) {
        return std::future::pending().await;
    }
    let capabilities = csi.controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await?;
    // Of its own: a driver that is not served any more leaves no handlers behind.
    let informers = Informers::new(client.clone());
    let driver = Arc::new(Driver {
        name: name.to_owned(),
        node: settings.node.clone(),
        namespace: settings.namespace.clone(),
        is_local: is_local(&plugin, place),
        place: place.clone(),
        csi,
        kube: client.clone(),
        recorder: EventRecorder::new(client.clone(), &format!("{name}_{}", settings.node), None),
        claims: informers.of(),
        volumes: informers.of(),
        classes: informers.of(),
        attachments: informers.of(),
        csi_drivers: informers.of(),
        informers,
        capabilities,
        space_changed: Notify::new(),
    });
    driver.add_indexes();
    tracing::info!(driver = name, local = driver.is_local, "serving a CSI driver");
    if driver.is_local {
        run(driver).await;
        return Ok(());
    }
    let lease = format!("csi-{}", name.replace('.', "-"));
    let election = LeaderElection::new(&settings.namespace, lease, &settings.node);
    // A lost lease ends the work; the caller starts over as a candidate.
    if let Err(error) = election.run(client.clone(), std::future::pending(), || run(driver)).await {
        tracing::info!(driver = name, %error, "another node serves the CSI driver");
    }
    Ok(())
}

fn is_local(plugin: &GetPluginCapabilitiesResponse, place: &Place) -> bool {
    plugin.has_service(PluginService::VolumeAccessibilityConstraints) && !place.segments.is_empty()
}

async fn run(driver: Arc<Driver>) {
    driver.claims.synced().await;
    driver.volumes.synced().await;
    driver.classes.synced().await;
    driver.attachments.synced().await;
    driver.csi_drivers.synced().await;
    tokio::join!(
        provision::run(driver.clone()),
        delete::run(driver.clone()),
        resize::run(driver.clone()),
        modify::run(driver.clone()),
        attach::run(driver.clone()),
        capacity::run(driver.clone()),
        snapshot::run(driver),
    );
}
