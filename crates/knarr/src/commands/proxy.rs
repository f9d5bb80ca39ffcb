//! `knarr proxy`: the standalone service proxy, against any Kubernetes API server.

use std::net::SocketAddr;

use clap::Args;
use knarr_client::Informers;
use knarr_network::proxy::{Settings, StatusSettings};
use knarr_supervisor::{Registry, Supervisor};

use super::api_server_address::ApiServerAddress;
use super::common;
use crate::journal;
use crate::signals;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub server: ApiServerAddress,
    /// Node name; by default the host name.
    #[arg(long)]
    pub hostname_override: Option<String>,
    /// Networks of all pods.
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Networks whose local addresses serve node ports; by default all.
    #[arg(long, value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// Address of the health endpoint.
    #[arg(long, default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: SocketAddr,
    /// Address of the metrics endpoint.
    #[arg(long, default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: SocketAddr,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = arguments.server.connect("kube-proxy").await?;
    let settings = Settings {
        node_name: common::node_name(arguments.hostname_override.as_deref())?,
        cluster_cidrs: arguments.cluster_cidr,
        node_port_addresses: arguments.nodeport_addresses,
        balancer_pool: None,
        status: StatusSettings {
            health: Some(arguments.healthz_bind_address),
            metrics: Some(arguments.metrics_bind_address),
            flags: crate::process_flags::flags(),
        },
    };
    let supervisor = Supervisor::new(&Registry::default());
    journal::start_upload(&supervisor, &client);
    supervisor.restart("service-proxy", move || {
        let ready = || tracing::info!("the service proxy is ready");
        knarr_network::proxy::run(Informers::new(client.clone()).without_heartbeats(), settings.clone(), ready)
    });
    let ended = signals::stopped_or_failed(supervisor.registry()).await;
    supervisor.shutdown().await;
    ended
}
