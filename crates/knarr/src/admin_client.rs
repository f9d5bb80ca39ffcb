//! A client of the API server for commands, from a kubeconfig.

use std::path::Path;

use anyhow::Context as _;
use knarr_client::kube::Client;

/// A client from a kubeconfig.
pub async fn connect(kubeconfig: &Path) -> anyhow::Result<Client> {
    let client = knarr_client::connect(Some(kubeconfig), "knarr").await;
    client.with_context(|| format!("cannot use {}, the kubeconfig of the server on this host", kubeconfig.display()))
}
