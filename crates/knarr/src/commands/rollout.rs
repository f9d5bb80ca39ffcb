//! `knarr certificate rotate-ca` and `knarr secrets-encryption rotate`: replace keys on all servers.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use knarr_client::kube::{self, Client};

use super::ClientArguments;
use crate::servers::rollout::{Kind, PATH, Progress, Request};

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long the server of this host may be away: it restarts at each step.
const MAX_SILENCE: Duration = Duration::from_secs(300);

#[derive(Args, Clone, Debug)]
pub struct CertificateArguments {
    #[command(subcommand)]
    command: Certificate,
}

#[derive(Subcommand, Clone, Debug)]
enum Certificate {
    /// Replace the cluster's certificate authority on all servers and nodes. Pods keep running.
    RotateCa(RolloutArguments),
}

#[derive(Args, Clone, Debug)]
pub struct EncryptionArguments {
    #[command(subcommand)]
    command: Encryption,
}

#[derive(Subcommand, Clone, Debug)]
enum Encryption {
    /// Replace the key that encrypts objects at rest on all servers, and encrypt all objects with the new one. Without a
    /// key, start to encrypt Secrets.
    Rotate(RolloutArguments),
}

#[derive(Args, Clone, Debug)]
struct RolloutArguments {
    #[command(flatten)]
    cluster: ClientArguments,
    /// Return at once; run the command again to see how far it is.
    #[arg(long)]
    no_wait: bool,
    /// Do not wait for nodes that are away: they must join again.
    #[arg(long)]
    force: bool,
}

pub async fn certificate(arguments: CertificateArguments) -> anyhow::Result<()> {
    let Certificate::RotateCa(arguments) = arguments.command;
    run(Kind::Authority, &arguments).await
}

pub async fn encryption(arguments: EncryptionArguments) -> anyhow::Result<()> {
    let Encryption::Rotate(arguments) = arguments.command;
    run(Kind::Encryption, &arguments).await
}

async fn run(kind: Kind, arguments: &RolloutArguments) -> anyhow::Result<()> {
    let request = serde_json::to_vec(&Request { kind, is_forced: arguments.force })?;
    let started = http::Request::post(PATH).header(http::header::CONTENT_TYPE, "application/json").body(request)?;
    let client = arguments.cluster.client().await?;
    let mut current: Option<Progress> = client.request(started).await.context("cannot replace the keys")?;
    let mut shown = String::new();
    let mut responded = Instant::now();
    while let Some(progress) = current {
        let line = describe(&progress);
        if line != shown {
            println!("{line}");
            shown = line;
        }
        if arguments.no_wait {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        current = match poll(arguments).await {
            Ok(next) => {
                responded = Instant::now();
                next
            }
            Err(Poll::Refused(message)) => anyhow::bail!("{message}"),
            Err(Poll::NoResponse(error)) if responded.elapsed() > MAX_SILENCE => {
                return Err(
                    error.context("the server does not respond: see its log, and run the command again with the kubeconfig of a server, which has the \
                     current certificates")
                );
            }
            Err(Poll::NoResponse(_)) => Some(progress),
        };
    }
    println!("All servers use the new keys.");
    Ok(())
}

/// Why there is no progress to show.
enum Poll {
    Refused(String),
    NoResponse(anyhow::Error),
}

/// The next progress. The server that responds restarts, too, with another certificate, and renews its kubeconfig.
async fn poll(arguments: &RolloutArguments) -> Result<Option<Progress>, Poll> {
    let asked = async {
        let client: Client = arguments.cluster.client().await?;
        let request = http::Request::get(PATH).body(Vec::new())?;
        anyhow::Ok(client.request(request).await)
    };
    match asked.await.map_err(Poll::NoResponse)? {
        Ok(progress) => Ok(progress),
        Err(kube::Error::Api(status)) if status.code < 500 => Err(Poll::Refused(status.message)),
        Err(error) => Err(Poll::NoResponse(error.into())),
    }
}

fn describe(progress: &Progress) -> String {
    let waiting = match &progress.waiting_for_server {
        Some(server) => format!("waiting for server {server}"),
        None if progress.waiting_for_nodes.is_empty() => "all servers are done".to_owned(),
        None => format!("waiting for nodes {}", progress.waiting_for_nodes.join(", ")),
    };
    format!("step {} of {}: {waiting}", progress.step, progress.steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_who_is_awaited() {
        let mut progress = Progress {
            kind: Kind::Authority,
            step: 2,
            steps: 3,
            applied: Default::default(),
            waiting_for_server: Some("a".into()),
            waiting_for_nodes: vec![],
        };
        assert_eq!(describe(&progress), "step 2 of 3: waiting for server a");
        progress.waiting_for_server = None;
        assert_eq!(describe(&progress), "step 2 of 3: all servers are done");
        progress.waiting_for_nodes = vec!["n1".into(), "n2".into()];
        assert_eq!(describe(&progress), "step 2 of 3: waiting for nodes n1, n2");
    }
}
