//! `knarr controller-manager`: the controllers, alone, against any Kubernetes API server.

use std::path::PathBuf;

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
    Ok(Settings {
        controllers: arguments.controllers.clone(),
        root_ca: arguments.root_ca_file.as_ref().map(read).transpose()?,
        signing,
        allocate_node_cidrs: !arguments.cluster_cidr.is_empty(),
        cluster_cidrs: arguments.cluster_cidr.clone(),
        service_cidrs: arguments.service_cluster_ip_range.clone(),
        ..Settings::default()
    })
}
