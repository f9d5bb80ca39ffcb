//! `knarr scheduler`: the standalone scheduler, against any Kubernetes API server.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use knarr_client::Informers;
use knarr_scheduler::config::LeaderSettings;
use knarr_scheduler::{Configuration, Settings};
use knarr_supervisor::{Registry, Supervisor};
use serde_json::json;

use super::api_server_address::ApiServerAddress;
use super::common;
use super::leadership::{self, Competitor, LeaderArguments, duration};
use crate::component_server::{self, Pages, ServingArguments};
use crate::journal;
use crate::servers::fenced;

/// Kubernetes' port of the scheduler.
const PORT: u16 = 10259;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub server: ApiServerAddress,
    /// A KubeSchedulerConfiguration file.
    #[arg(long)]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub leader: LeaderArguments,
    #[command(flatten)]
    pub serving: ServingArguments,
}

/// Reads a KubeSchedulerConfiguration; without a file, everything has its default.
pub fn read_configuration(path: Option<&Path>) -> anyhow::Result<Configuration> {
    let Some(path) = path else { return Ok(Configuration::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = Configuration::parse(&text).and_then(|configuration| {
        configuration.check_files()?;
        Ok(configuration)
    });
    read.with_context(|| format!("{} is invalid", path.display()))
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let configuration = read_configuration(arguments.config.as_deref())?;
    let server = arguments.server.or_kubeconfig(configuration.kubeconfig.as_deref());
    let client = server.connect("kube-scheduler").await?;
    let leader = arguments.leader.or(configured(&configuration.leader)?);
    let component = configuration.profiles.first().map(|profile| profile.scheduler_name.clone()).unwrap_or_default();
    let names = configuration.profiles.iter().map(|profile| json!({"schedulerName": profile.scheduler_name}));
    let profiles: Vec<serde_json::Value> = names.collect();
    let settings = Settings { configuration, now: jiff::Timestamp::now };
    let fence = leadership::fence(&leader);
    let work = {
        let client = fenced(client.clone(), &fence);
        || knarr_scheduler::run(client.clone(), Informers::new(client).without_heartbeats(), settings)
    };
    let supervisor = Supervisor::new(&Registry::default());
    journal::start_upload(&supervisor, &client);
    let configuration = json!({"kubescheduler.config.k8s.io/v1": {"kind": "KubeSchedulerConfiguration",
        "profiles": profiles, "leaderElection": {"leaderElect": leader.leader_elect.unwrap_or(false)}}});
    let pages = Pages::new("kube-scheduler", supervisor.registry(), configuration);
    component_server::start(&arguments.serving, PORT, pages, &client, &supervisor).await?;
    let competitor = Competitor { lease: "kube-scheduler", component: &component };
    common::supervised(&supervisor, "kube-scheduler", leadership::lead(client, fence, competitor, &leader, work)).await
}

/// Leader election settings of the configuration file.
fn configured(settings: &LeaderSettings) -> anyhow::Result<LeaderArguments> {
    let length = |text: &Option<String>| text.as_deref().map(duration).transpose().map_err(anyhow::Error::msg);
    Ok(LeaderArguments {
        leader_elect: settings.leader_elect,
        leader_elect_lease_duration: length(&settings.lease_duration)?,
        leader_elect_renew_deadline: length(&settings.renew_deadline)?,
        leader_elect_retry_period: length(&settings.retry_period)?,
        leader_elect_resource_name: settings.resource_name.clone(),
        leader_elect_resource_namespace: settings.resource_namespace.clone(),
    })
}
