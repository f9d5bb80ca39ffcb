//! `knarr local-storage`: the driver of local volumes as a process of its own, for other kubelets and for test suites.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use knarr_local_storage::{Reserve, Settings, Sockets, run as serve};

use super::common;
use crate::signals;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Unix socket of the driver, as a path or unix:///path.
    #[arg(long, default_value = "unix:///var/lib/kubelet/plugins/local.knarr.io/csi.sock")]
    endpoint: String,
    /// Directory in which the kubelet finds plugins, usually /var/lib/kubelet/plugins_registry; without it the driver does not
    /// register.
    #[arg(long)]
    registration_directory: Option<PathBuf>,
    /// Directory of the volumes.
    #[arg(long, default_value = "/var/lib/knarr/storage")]
    directory: PathBuf,
    /// Node name; by default the host name.
    #[arg(long)]
    pub node_name: Option<String>,
    /// The part of the disk in percent that volumes never get.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(..=100))]
    reserved_percent: u8,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let node = common::node_name(arguments.node_name.as_deref())?;
    let csi = Sockets::path_of(&arguments.endpoint).context("--endpoint")?;
    let file = format!("{}-reg.sock", knarr_local_storage::DRIVER);
    let registration = arguments.registration_directory.map(|directory| directory.join(file));
    let reserve = Reserve::Thousandths(u64::from(arguments.reserved_percent) * 10);
    let settings = Settings { root: arguments.directory, node, reserve };
    tokio::select! {
        ended = serve(settings, Sockets { csi, registration }) => ended.context("the driver of local volumes failed"),
        stopped = signals::stopped() => stopped,
    }
}
