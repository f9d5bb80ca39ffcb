//! `knarr controller-manager`: the standalone controllers, against any Kubernetes API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use knarr_client::Fence;
use knarr_client::kube::Client;
use knarr_controllers::{AccountClients, CONTROLLERS, Context, Settings, SigningAuthority};
use knarr_supervisor::{Registry, Supervisor};
use serde_json::json;

use super::api_server_address::ApiServerAddress;
use super::common;
use super::controller_signers::SignerArguments;
use super::controller_syncs::SyncArguments;
use super::controller_tuning::TuningArguments;
use super::leadership::{self, Competitor, LeaderArguments};
use crate::component_server::{self, Pages, ServingArguments};
use crate::join::pem;
use crate::journal;
use crate::servers::fenced;

/// The component's name, as in its user agent, its lease and its pages.
const AGENT: &str = "kube-controller-manager";

/// Kubernetes' port of the controller manager.
const PORT: u16 = 10257;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub server: ApiServerAddress,
    /// Controllers to run: `*` for all default ones, `name` to enable and `-name` to disable one.
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    #[command(flatten)]
    pub leader: LeaderArguments,
    #[command(flatten)]
    pub serving: ServingArguments,
    /// Let each controller act as its own service account of kube-system.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub use_service_account_credentials: bool,
    /// CA certificates (PEM) by which pods verify the API server.
    #[arg(long)]
    pub root_ca_file: Option<PathBuf>,
    /// CA certificate (PEM) for signing certificate requests.
    #[arg(long, requires = "cluster_signing_key_file")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// Private key (PEM) of that CA certificate.
    #[arg(long, requires = "cluster_signing_cert_file")]
    pub cluster_signing_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub signers: SignerArguments,
    /// Maximum validity of signed certificates.
    #[arg(long, value_parser = leadership::duration)]
    pub cluster_signing_duration: Option<Duration>,
    /// How long an auto-generated service account token must be unused before it is invalidated, and then deleted.
    #[arg(long, value_parser = leadership::duration)]
    pub legacy_service_account_token_clean_up_period: Option<Duration>,
    /// Never detach volumes from nodes that are lost and do not report them unmounted, unless they are out of service.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub disable_force_detach_on_timeout: bool,
    /// Networks of all pods, at most one per address family; each node gets a subnet.
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Networks of Services.
    #[arg(long, value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<String>,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub syncs: SyncArguments,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = arguments.server.connect(AGENT).await?;
    let fence = leadership::fence(&arguments.leader);
    let settings = settings(&arguments, published_authority(&arguments).await?)?;
    let mut context = Context::new(fenced(client.clone(), &fence), settings);
    if arguments.use_service_account_credentials {
        context = context.with_accounts(accounts(&arguments, &client, &fence).await?);
    }
    let work = || knarr_controllers::run(context);
    let supervisor = Supervisor::new(&Registry::default());
    journal::start_upload(&supervisor, &client);
    let configuration = json!({"kubecontrollermanager.config.k8s.io": {"generic": {
        "controllers": arguments.controllers,
        "leaderElection": {"leaderElect": arguments.leader.leader_elect.unwrap_or(false)}}}});
    let pages = Pages::new(AGENT, supervisor.registry(), configuration);
    component_server::start(&arguments.serving, PORT, pages, &client, &supervisor).await?;
    let competitor = Competitor { lease: AGENT, component: AGENT };
    common::supervised(&supervisor, AGENT, leadership::lead(client, fence, competitor, &arguments.leader, work)).await
}

/// A client for each controller, as its service account.
async fn accounts(arguments: &Arguments, root: &Client, fence: &Fence) -> anyhow::Result<AccountClients> {
    let accounts = knarr_client::AccountClients::new(arguments.server.config(AGENT).await?, root.clone())?;
    let names: BTreeSet<&str> = CONTROLLERS.iter().filter_map(|controller| controller.account).collect();
    let clients: Result<BTreeMap<&str, Client>, _> =
        names.into_iter().map(|name| accounts.client(name).map(|client| (name, fenced(client, fence)))).collect();
    let (clients, root) = (clients?, fenced(root.clone(), fence));
    Ok(Arc::new(move |account| clients.get(account).unwrap_or(&root).clone()))
}

/// The authority that pods verify the API server with: that of the file, else the one of the kubeconfig.
async fn published_authority(arguments: &Arguments) -> anyhow::Result<Option<String>> {
    if let Some(file) = &arguments.root_ca_file {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        return Ok(Some(text));
    }
    let config = arguments.server.config(AGENT).await?;
    Ok(config.root_cert.map(|authorities| authorities.iter().map(|authority| pem(authority)).collect()))
}

fn settings(arguments: &Arguments, root_ca: Option<String>) -> anyhow::Result<Settings> {
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let signing = match (&arguments.cluster_signing_cert_file, &arguments.cluster_signing_key_file) {
        (Some(certificate), Some(key)) => Some(SigningAuthority { certificate: read(certificate)?, key: read(key)? }),
        _ => None,
    };
    let usual = arguments.tuning.apply(Settings::default());
    Ok(Settings {
        controllers: arguments.controllers.clone(),
        root_ca,
        signing,
        signers: arguments.signers.authorities(arguments.cluster_signing_cert_file.is_some())?,
        concurrent_syncs: arguments.syncs.0.clone(),
        allocate_node_cidrs: !arguments.cluster_cidr.is_empty(),
        cluster_cidrs: arguments.cluster_cidr.clone(),
        service_cidrs: arguments.service_cluster_ip_range.clone(),
        disable_force_detach_on_timeout: arguments.disable_force_detach_on_timeout,
        signing_duration: arguments.cluster_signing_duration.unwrap_or(usual.signing_duration),
        legacy_token_clean_up_period: arguments
            .legacy_service_account_token_clean_up_period
            .unwrap_or(usual.legacy_token_clean_up_period),
        ..usual
    })
}
