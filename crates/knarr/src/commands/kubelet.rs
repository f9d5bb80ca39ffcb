//! `knarr kubelet`: the standalone kubelet, against any Kubernetes API server.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{ArgAction, Args};
use jiff::Timestamp;
use knarr_client::connect;
use knarr_client::kube::Client;
use knarr_kubelet::CertificateFiles;
use knarr_kubelet::certificates::ensure_self_signed;
use knarr_supervisor::{Registry, Supervisor};

use super::common;
use super::kubelet_access::KubeletAccessArguments;
use super::node::{self, NodeArguments, NodeFiles, Runtime};
use crate::join::{Identity, until_reached};
use crate::tls_arguments::TlsArguments;
use crate::{data_directory_lock, journal, signals};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Kubeconfig file. With --bootstrap-kubeconfig it is written, for other programs that act as the node.
    #[arg(long, required_unless_present = "bootstrap_kubeconfig")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig file for requesting the node's first certificate, which is renewed from then on.
    #[arg(long)]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Data directory.
    #[arg(long, default_value = crate::paths::DATA, value_parser = crate::paths::absolute())]
    pub data_dir: PathBuf,
    /// CA certificates (PEM) for client certificates of the kubelet's server.
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Serving certificate (PEM) of the kubelet's server.
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key (PEM) of the serving certificate.
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub tls: TlsArguments,
    /// Without --tls-cert-file, request the serving certificate from the API and renew it.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub rotate_server_certificates: bool,
    /// Directory of `kubelet.crt` and `kubelet.key`, which are served if no certificate is given or requested, and created if
    /// missing [default: kubelet/pki in the data directory].
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    #[command(flatten)]
    pub access: KubeletAccessArguments,
    #[command(flatten)]
    pub node: NodeArguments,
}

pub async fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    super::disable::apply(&mut arguments.node, None);
    data_directory_lock::acquire(&arguments.data_dir)?.until_exit();
    let algorithms = arguments.tls.checked()?;
    let serving = serving_certificate(&arguments)?;
    let supervisor = Supervisor::new(&Registry::default());
    let client = match &arguments.bootstrap_kubeconfig {
        Some(bootstrap) => tokio::select! {
            joined = join(&arguments, bootstrap, &supervisor) => joined?,
            stopped = signals::stopped() => return stopped,
        },
        None => connect(arguments.kubeconfig.as_deref(), "kubelet").await?,
    };
    let files = NodeFiles {
        client_ca: arguments.client_ca_file.clone(),
        serving,
        algorithms,
        access: arguments.access.access(),
        read_only_port: arguments.access.read_only_port(),
    };
    let shutdown = async {
        if let Err(error) = signals::stopped().await {
            tracing::error!(%error, "cannot listen for signals");
        }
    };
    journal::start_upload(&supervisor, &client);
    let runtime = Runtime::start(&arguments.node, &arguments.data_dir, supervisor.registry());
    let node = node::run(client, &arguments.node, &arguments.data_dir, files, runtime, shutdown);
    let ended = common::supervised(&supervisor, "kubelet", node).await;
    supervisor.shutdown().await;
    ended
}

/// The files of the serving certificate, unless one is requested from the API.
fn serving_certificate(arguments: &Arguments) -> anyhow::Result<Option<CertificateFiles>> {
    match (&arguments.tls_cert_file, &arguments.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            Ok(Some(CertificateFiles { certificate: certificate.clone(), key: key.clone() }))
        }
        _ if arguments.rotate_server_certificates => Ok(None),
        _ => {
            let usual = || arguments.data_dir.join("kubelet/pki");
            let directory = arguments.cert_dir.clone().unwrap_or_else(usual);
            Ok(Some(ensure_self_signed(&directory, "kubelet", &[&arguments.node.name()?], Timestamp::now())?))
        }
    }
}

/// Obtains the node's certificate and keeps it renewed.
async fn join(arguments: &Arguments, bootstrap: &Path, supervisor: &Supervisor) -> anyhow::Result<Client> {
    let (name, directory) = (arguments.node.name()?, arguments.data_dir.join("kubelet/pki"));
    let identity = until_reached(|| Identity::bootstrap(bootstrap, &name, &directory)).await?;
    if let Some(kubeconfig) = &arguments.kubeconfig {
        let text = serde_json::to_vec_pretty(&identity.kubeconfig())?;
        std::fs::write(kubeconfig, text).with_context(|| format!("cannot write {}", kubeconfig.display()))?;
    }
    let client = identity.client();
    supervisor.restart("node-certificate", move || identity.clone().keep());
    Ok(client)
}
