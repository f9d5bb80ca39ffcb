//! Storage of a node: the driver of local volumes, and the controller for drivers that bring none.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use knarr_client::kube::Client;
use knarr_csi_controller::Settings;
use knarr_kubelet::{Eviction, Signal, Threshold};
use knarr_local_storage::{Reserve, Sockets};
use knarr_supervisor::Supervisor;

use crate::join::{Identity, STORAGE_NAMESPACE, until_reached};

const CONTROLLER: &str = "csi-controller";
const DRIVER: &str = "local-storage";
const RETRY: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug)]
pub struct StorageArguments {
    /// Directory of local volumes (StorageClass knarr-local); by default `storage` in the data directory.
    #[arg(long)]
    pub local_storage_dir: Option<PathBuf>,
    /// Do not provide local volumes. On a server: do not create their StorageClass either.
    #[arg(long)]
    pub disable_local_storage: bool,
}

/// Where a node keeps what belongs to its storage.
pub struct NodeStorage<'a> {
    pub arguments: &'a StorageArguments,
    pub node: &'a str,
    pub data: &'a Path,
    /// The kubelet's directory of plugins.
    pub plugin_root: PathBuf,
    pub eviction: &'a Eviction,
}

impl NodeStorage<'_> {
    /// Starts everything, with a client of the controller's own identity.
    pub fn start(self, client: Client, supervisor: &Supervisor) {
        self.start_driver(supervisor);
        let settings = self.settings();
        supervisor.restart(CONTROLLER, move || knarr_csi_controller::run(client.clone(), settings.clone()));
    }

    /// Starts everything; the node requests a certificate for the controller.
    pub fn start_with_certificate(self, identity: &Identity, supervisor: &Supervisor) {
        self.start_driver(supervisor);
        let (identity, settings) = (identity.clone(), self.settings());
        supervisor.restart(CONTROLLER, move || {
            let (identity, settings) = (identity.clone(), settings.clone());
            async move {
                // Pods without volumes of drivers run as well: the node does not wait for it.
                match until_reached(|| identity.storage()).await {
                    Ok(own) => {
                        let client = own.client();
                        tokio::join!(own.keep(), knarr_csi_controller::run(client, settings));
                    }
                    Err(error) => tracing::error!(error = format!("{error:#}"), "cannot start the CSI controller"),
                }
            }
        });
    }

    fn settings(&self) -> Settings {
        Settings {
            node: self.node.to_owned(),
            registry: self.plugin_root.join("plugins_registry"),
            namespace: STORAGE_NAMESPACE.to_owned(),
        }
    }

    fn start_driver(&self, supervisor: &Supervisor) {
        if self.arguments.disable_local_storage {
            return;
        }
        let settings = knarr_local_storage::Settings {
            root: self.arguments.local_storage_dir.clone().unwrap_or_else(|| self.data.join("storage")),
            node: self.node.to_owned(),
            reserve: reserve(self.eviction),
        };
        let sockets = Sockets::below(&self.plugin_root);
        supervisor.restart(DRIVER, move || {
            let (settings, sockets) = (settings.clone(), sockets.clone());
            async move {
                if let Err(error) = knarr_local_storage::run(settings, sockets).await {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "local volumes are not available; retrying"
                    );
                    tokio::time::sleep(RETRY).await;
                }
            }
        });
    }
}

/// What local volumes leave free: as much as keeps the node from evicting pods because its disk is full.
fn reserve(eviction: &Eviction) -> Reserve {
    let hard = |limit: &&knarr_kubelet::Limit| limit.signal == Signal::NodeDisk && limit.grace.is_none();
    match eviction.limits.iter().find(hard).map(|limit| limit.below) {
        Some(Threshold::Amount(bytes)) => Reserve::Bytes(u64::try_from(bytes).unwrap_or(0)),
        Some(Threshold::Thousandths(share)) => Reserve::Thousandths(u64::try_from(share).unwrap_or(0)),
        None => Reserve::Bytes(0),
    }
}

#[cfg(test)]
mod tests {
    use knarr_kubelet::Limit;

    use super::*;

    #[test]
    fn volumes_leave_what_the_eviction_threshold_of_the_disk_asks_for() {
        assert_eq!(reserve(&Eviction::default()), Reserve::Thousandths(100));
        let limit = |signal, below, grace| Limit { signal, below, grace, reclaim: None };
        let minute = Some(Duration::from_secs(60));
        for (limits, expected) in [
            (vec![], Reserve::Bytes(0)),
            (vec![limit(Signal::Memory, Threshold::Amount(1), None)], Reserve::Bytes(0)),
            (vec![limit(Signal::NodeDisk, Threshold::Amount(5), None)], Reserve::Bytes(5)),
            (vec![limit(Signal::NodeDisk, Threshold::Thousandths(200), minute)], Reserve::Bytes(0)),
        ] {
            assert_eq!(reserve(&Eviction { limits, ..Eviction::default() }), expected);
        }
    }
}
