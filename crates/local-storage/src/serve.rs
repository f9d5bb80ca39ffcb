//! The driver on its sockets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_csi::messages::{CSI_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use knarr_csi::{REGISTRATION_VERSION, Registration, Server, Status, listen};
use tokio::net::UnixListener;

use crate::DRIVER;
use crate::driver::{Driver, Service, Settings};
use crate::error::Error;

/// Where the driver serves.
#[derive(Clone, Debug)]
pub struct Sockets {
    pub csi: PathBuf,
    /// Where the kubelet finds drivers; none if it does not have to find this one.
    pub registration: Option<PathBuf>,
}

impl Sockets {
    /// The path of an endpoint: `unix:///path` or `/path`.
    pub fn path_of(endpoint: &str) -> Result<PathBuf, Error> {
        knarr_csi::socket_path(endpoint).map_err(|error| Error::Invalid(error.to_string()))
    }

    /// The usual places below the kubelet's directory.
    pub fn below(kubelet: &Path) -> Self {
        Self {
            csi: kubelet.join("plugins").join(DRIVER).join("csi.sock"),
            registration: Some(kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock"))),
        }
    }
}

/// Serves until the future is dropped.
pub async fn run(settings: Settings, sockets: Sockets) -> Result<(), Error> {
    let opened = tokio::task::spawn_blocking(move || Driver::open(settings)).await;
    let driver = opened.map_err(|error| Error::Internal(error.to_string()))??;
    let service = Arc::new(Service(Arc::new(driver)));
    let server = Server::new().identity(service.clone()).controller(service.clone()).node(service);
    let serving = server.serve(bind(&sockets.csi)?);
    let _csi = RemovedAtEnd(sockets.csi.clone());
    let Some(registration) = sockets.registration else {
        return serving.await.map_err(Error::file("serve at", &sockets.csi));
    };
    let announced = Server::new().registration(Arc::new(Announcement { endpoint: sockets.csi.clone() }));
    let announcing = announced.serve(bind(&registration)?);
    let _registration = RemovedAtEnd(registration.clone());
    tokio::select! {
        ended = serving => ended.map_err(Error::file("serve at", &sockets.csi)),
        ended = announcing => ended.map_err(Error::file("serve at", &registration)),
    }
}

fn bind(socket: &Path) -> Result<UnixListener, Error> {
    if let Some(parent) = socket.parent() {
        std::fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
    }
    listen(socket).map_err(Error::file("listen at", socket))
}

/// A socket that nobody serves would be taken for a driver that hangs.
struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Announcement {
    endpoint: PathBuf,
}

#[async_trait::async_trait]
impl Registration for Announcement {
    async fn get_info(&self, _: InfoRequest) -> Result<PluginInfo, Status> {
        Ok(PluginInfo {
            kind: CSI_PLUGIN.into(),
            name: DRIVER.into(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec![REGISTRATION_VERSION.into()],
        })
    }

    async fn notify_registration_status(
        &self,
        status: RegistrationStatus,
    ) -> Result<RegistrationStatusResponse, Status> {
        match status.plugin_registered {
            true => tracing::info!("the kubelet registered the driver {DRIVER}"),
            false => tracing::error!(error = status.error, "the kubelet did not register the driver {DRIVER}"),
        }
        Ok(RegistrationStatusResponse {})
    }
}
