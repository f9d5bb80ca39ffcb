//! Where a standalone component finds the API server, and as whom it connects.

use std::path::{Path, PathBuf};

use clap::Args;
use knarr_client::kube::{Client, Config};

#[derive(Args, Clone, Debug, Default)]
pub struct ApiServerAddress {
    /// Kubeconfig file.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, in place of that of the kubeconfig.
    #[arg(long)]
    pub master: Option<String>,
}

impl ApiServerAddress {
    /// The address with the kubeconfig of a configuration file, which a flag takes the place of.
    pub fn or_kubeconfig(mut self, configured: Option<&Path>) -> Self {
        self.kubeconfig = self.kubeconfig.or_else(|| configured.map(Path::to_path_buf));
        self
    }

    pub async fn config(&self, agent: &'static str) -> anyhow::Result<Config> {
        Ok(knarr_client::read_config_at(self.master.as_deref(), self.kubeconfig.as_deref(), agent).await?)
    }

    pub async fn connect(&self, agent: &'static str) -> anyhow::Result<Client> {
        Ok(knarr_client::connect_at(self.master.as_deref(), self.kubeconfig.as_deref(), agent).await?)
    }
}
