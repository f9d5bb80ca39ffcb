//! `knarr controller-manager`: the standalone controllers, against any Kubernetes API server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use knarr_client::connect;
use knarr_controllers::{Context, Settings, SigningAuthority};

use super::leadership::{self, Competitor, LeaderArguments};
use crate::journal;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Kubeconfig file.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Controllers to run: `*` for all default ones, `name` to enable and `-name` to disable one.
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    #[command(flatten)]
    pub leader: LeaderArguments,
    /// CA certificates (PEM) by which pods verify the API server.
    #[arg(long)]
    pub root_ca_file: Option<PathBuf>,
    /// CA certificate (PEM) for signing certificate requests.
    #[arg(long, requires = "cluster_signing_key_file")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// Private key (PEM) of that CA certificate.
    #[arg(long, requires = "cluster_signing_cert_file")]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// Maximum validity of signed certificates.
    #[arg(long, value_parser = leadership::duration)]
    pub cluster_signing_duration: Option<Duration>,
    /// How long an auto-generated service account token must be unused before it is invalidated, and then deleted.
    #[arg(long, value_parser = leadership::duration)]
    pub legacy_service_account_token_clean_up_period: Option<Duration>,
    /// Networks of all pods, at most one per address family; each node gets a subnet.
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Networks of Services.
    #[arg(long, value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<String>,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = connect(arguments.kubeconfig.as_deref(), "kube-controller-manager").await?;
    let context = Context::new(client.clone(), settings(&arguments)?);
    let work = || knarr_controllers::run(context);
    tokio::spawn(journal::upload(client.clone()));
    let name = "kube-controller-manager";
    leadership::lead(client, Competitor { lease: name, component: name }, &arguments.leader, work).await
}

fn settings(arguments: &Arguments) -> anyhow::Result<Settings> {
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let signing = match (&arguments.cluster_signing_cert_file, &arguments.cluster_signing_key_file) {
        (Some(certificate), Some(key)) => Some(SigningAuthority { certificate: read(certificate)?, key: read(key)? }),
        _ => None,
    };
    let usual = Settings::default();
    Ok(Settings {
        controllers: arguments.controllers.clone(),
        root_ca: arguments.root_ca_file.as_ref().map(read).transpose()?,
        signing,
        allocate_node_cidrs: !arguments.cluster_cidr.is_empty(),
        cluster_cidrs: arguments.cluster_cidr.clone(),
        service_cidrs: arguments.service_cluster_ip_range.clone(),
        signing_duration: arguments.cluster_signing_duration.unwrap_or(usual.signing_duration),
        legacy_token_clean_up_period: arguments
            .legacy_service_account_token_clean_up_period
            .unwrap_or(usual.legacy_token_clean_up_period),
        ..usual
    })
}
