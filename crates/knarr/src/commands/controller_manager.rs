//! `knarr controller-manager`: the controllers, alone, against any Kubernetes API server.

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
    /// How to reach the API server.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Controllers to run: `*` for all, `-name` to leave one out.
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    #[command(flatten)]
    pub leader: LeaderArguments,
    /// Certificate authorities (PEM) that pods trust to reach the API server.
    #[arg(long)]
    pub root_ca_file: Option<PathBuf>,
    /// Certificate (PEM) of the authority that signs certificate requests.
    #[arg(long, requires = "cluster_signing_key_file")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, requires = "cluster_signing_cert_file")]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// How long the certificates it signs are valid at the most.
    #[arg(long, value_parser = leadership::duration)]
    pub cluster_signing_duration: Option<Duration>,
    /// How long a generated token of a service account must be unused to be marked invalid, and then to be removed.
    #[arg(long, value_parser = leadership::duration)]
    pub legacy_service_account_token_clean_up_period: Option<Duration>,
    /// Networks of all pods, at most one of each family; nodes get their part of them.
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Networks of services.
    #[arg(long, value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<String>,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = connect(arguments.kubeconfig.as_deref(), "kube-controller-manager").await?;
    let context = Context::new(client.clone(), settings(&arguments)?);
    let work = || knarr_controllers::run(context);
    tokio::spawn(journal::hand_over(client.clone()));
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
