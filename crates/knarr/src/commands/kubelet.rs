//! `knarr kubelet`: the node, alone, against any Kubernetes API server.

use std::path::PathBuf;

use clap::Args;
use knarr_client::connect;
use knarr_kubelet::CertificateFiles;

use super::common;
use super::node::{self, NodeArguments, NodeFiles, Runtime};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How to reach the API server.
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Where the node keeps its files.
    #[arg(long, default_value = "/var/lib/knarr")]
    pub data_dir: PathBuf,
    /// Authorities (PEM) whose client certificates may use the node's endpoints.
    #[arg(long)]
    pub client_ca_file: PathBuf,
    /// Certificate (PEM) that the node's endpoints show.
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub node: NodeArguments,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = connect(Some(&arguments.kubeconfig), "kubelet").await?;
    let serving = match (&arguments.tls_cert_file, &arguments.tls_private_key_file) {
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate: certificate.clone(), key: key.clone() }),
        _ => None,
    };
    let files = NodeFiles { client_ca: arguments.client_ca_file.clone(), serving };
    let shutdown = async {
        if let Err(error) = common::stopped().await {
            tracing::error!(%error, "cannot listen for signals");
        }
    };
    let runtime = Runtime::start(&arguments.node, &arguments.data_dir);
    node::run(client, &arguments.node, &arguments.data_dir, files, runtime, shutdown).await
}
