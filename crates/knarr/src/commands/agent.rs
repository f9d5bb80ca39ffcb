//! `knarr agent`: makes this machine a node of a cluster: kubelet, pod network, service proxy, DNS.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::kube::Client;
use tokio::task::JoinSet;

use super::common;
use super::network::{NetworkArguments, NodeNetwork};
use super::node::{self, NodeArguments, NodeFiles, Runtime};
use super::preflight;
use crate::cluster::Cluster;
use crate::join::{self, Identity, JoinToken, Pin};
use crate::ready::{self, Display, Probe};
use crate::{journal, running};

const RETRY: Duration = Duration::from_secs(2);
/// How long a node that knows its cluster waits for the server to say whether something has changed.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Args, Clone, Debug)]
// What the whole cluster shares, an agent learns from the server.
#[command(mut_arg("cluster_dns", |argument| argument.hide(true)))]
#[command(mut_arg("cluster_domain", |argument| argument.hide(true)))]
pub struct Arguments {
    /// The server to join, such as https://10.0.0.1:6443.
    #[arg(long, env = "KNARR_SERVER")]
    pub server: http::Uri,
    /// The token that `knarr token create` printed on the server.
    #[arg(long, env = "KNARR_TOKEN", hide_env_values = true)]
    pub token: JoinToken,
    /// Where the node keeps its files.
    #[arg(long, default_value = common::DATA)]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub node: NodeArguments,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    check_server(&arguments.server)?;
    running::take(&arguments.data_dir)?.until_exit();
    preflight::check(&arguments.node, &arguments.data_dir, Vec::new())?;
    let begun = Instant::now();
    let runtime = Runtime::start(&arguments.node, &arguments.data_dir);
    let joined = tokio::select! {
        joined = join(&arguments) => joined?,
        stopped = common::stopped() => return stopped,
    };
    serve(arguments, joined, runtime, begun).await
}

/// A machine that the cluster knows.
struct Joined {
    identity: Identity,
    cluster: Cluster,
}

async fn join(arguments: &Arguments) -> anyhow::Result<Joined> {
    let name = arguments.node.name()?;
    let authority = authority(arguments).await?;
    let folder = arguments.data_dir.join("kubelet/pki");
    let token = &arguments.token.bootstrap;
    let identity = until_reached(|| Identity::obtain(&arguments.server, &authority, token, &name, &folder)).await?;
    let client = identity.client();
    let cluster = cluster(&client, &arguments.data_dir).await?;
    tracing::info!(server = %arguments.server, node = name, "joined");
    Ok(Joined { identity, cluster })
}

/// What all nodes share, from the server; a node that was one before works without it, for its pods must.
async fn cluster(client: &Client, data: &Path) -> anyhow::Result<Cluster> {
    let known = Cluster::load(data);
    let asked = async { until_reached(|| Cluster::read(client)).await };
    let cluster = match (known, asked) {
        (None, asked) => asked.await?,
        (Some(known), asked) => match tokio::time::timeout(PATIENCE, asked).await {
            Ok(current) => current?,
            Err(_) => return Ok(known),
        },
    };
    cluster.save(data)?;
    Ok(cluster)
}

/// Runs the node until the process is asked to stop. Pods go on running after that.
async fn serve(mut arguments: Arguments, joined: Joined, runtime: Runtime, begun: Instant) -> anyhow::Result<()> {
    let Joined { identity, cluster } = joined;
    arguments.node.cluster_dns = cluster.dns;
    arguments.node.cluster_domain = cluster.domain;
    let network = NetworkArguments {
        cluster_cidr: cluster.pod_networks,
        load_balancer_pool: cluster.load_balancers,
        ingress_http: Vec::new(),
        ingress_https: Vec::new(),
        disable_ingress: true,
    };
    let client = identity.client();
    let mut tasks = JoinSet::new();
    tasks.spawn(identity.keep());
    tasks.spawn(journal::hand_over(client.clone()));
    let parts =
        NodeNetwork { node: &arguments.node, network: &network, data: &arguments.data_dir, publish: Vec::new() };
    parts.start(client.clone(), &mut tasks)?;
    tasks.spawn(tell_when_ready(client.clone(), arguments.clone(), begun));
    let shutdown = async {
        if let Err(error) = common::stopped().await {
            tracing::error!(%error, "cannot listen for signals");
        }
    };
    let files = NodeFiles { client_ca: authority_file(&arguments), serving: None };
    let ended = node::run(client, &arguments.node, &arguments.data_dir, files, runtime, shutdown).await;
    tasks.shutdown().await;
    ended
}

async fn tell_when_ready(client: Client, arguments: Arguments, begun: Instant) {
    let name = common::node_name(arguments.node.node_name.as_deref()).unwrap_or_default();
    let mut display = Display::new(format!("This machine is node {name} of {}.", arguments.server));
    let mut probes = vec![Probe::node(client, name)];
    probes
        .extend(arguments.node.cluster_dns.first().map(|address| Probe::dns(*address, &arguments.node.cluster_domain)));
    ready::wait(probes, begun, &mut display).await;
}

fn authority_file(arguments: &Arguments) -> PathBuf {
    arguments.data_dir.join("pki/ca.crt")
}

fn check_server(server: &http::Uri) -> anyhow::Result<()> {
    if server.scheme_str() != Some("https") || server.host().is_none() {
        bail!("--server is {server}, which is not of the form https://HOST:6443");
    }
    Ok(())
}

/// The authority of the cluster (DER), from the file if it is the pinned one, else from the server.
async fn authority(arguments: &Arguments) -> anyhow::Result<Vec<u8>> {
    let pin = arguments.token.pin;
    let file = authority_file(arguments);
    if let Ok(pem) = std::fs::read(&file)
        && let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(&pem)
        && Pin::of(&pem.contents).is_ok_and(|found| found == pin)
    {
        return Ok(pem.contents);
    }
    let authority = until_reached(|| join::fetch_authority(&arguments.server, pin)).await?;
    let text = pem(&authority);
    let folder = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(authority)
}

fn pem(certificate: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Tries again while the server cannot be reached, which may just be starting; any other failure ends it.
async fn until_reached<T, F>(mut attempt: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if is_unreachable(&error) => {
                tracing::warn!(error = format!("{error:#}"), "the server cannot be reached yet; trying again");
                tokio::time::sleep(RETRY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_unreachable(error: &anyhow::Error) -> bool {
    use knarr_client::kube::Error;
    error.chain().any(|cause| {
        let from_api = cause.downcast_ref::<Error>().or_else(|| Some(cause.downcast_ref::<Box<Error>>()?.as_ref()));
        let from_system = cause.downcast_ref::<std::io::Error>();
        // What a peer says wrongly is reported as invalid data; that does not mend itself.
        from_system.is_some_and(|error| error.kind() != std::io::ErrorKind::InvalidData)
            || match from_api {
                Some(Error::Api(status)) => matches!(status.code, 429 | 500..),
                Some(Error::HyperError(_) | Error::Service(_)) => true,
                _ => false,
            }
    })
}
