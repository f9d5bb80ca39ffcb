//! Makes a client from a kubeconfig file, or from the surroundings when none is named.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read the kubeconfig")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    #[error("no kubeconfig was given and none could be inferred")]
    Infer(#[source] kube::config::InferConfigError),
    #[error("cannot make a client from the configuration")]
    Client(#[source] kube::Error),
}

/// Connects as the kubeconfig says; without one, as `KUBECONFIG`, `~/.kube/config` or the pod's service account say.
///
/// No read timeout is set: a watch may be silent for minutes and ends by the server's own timeout.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(ConnectError::Kubeconfig)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(ConnectError::Kubeconfig)?
        }
        None => Config::infer().await.map_err(ConnectError::Infer)?,
    };
    config.read_timeout = None;
    Client::try_from(config).map_err(ConnectError::Client)
}
