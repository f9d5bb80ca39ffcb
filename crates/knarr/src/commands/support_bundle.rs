//! `knarr support-bundle`: one file with what somebody needs who is asked for help, and without secrets.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use knarr_client::kube::Client;

use super::client_arguments::ClientArguments;
use crate::output;
use crate::support::{self, Bundle, Redactor};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The file to write; by default knarr-support-TIME.tar.gz in the current directory.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClientArguments,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let name = format!("knarr-support-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let path = arguments.output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let mut bundle = Bundle::default();
    let client = arguments.cluster.client().await;
    let (redactor, unread) = redactor(client.as_ref().ok()).await?;
    if let Some(error) = unread {
        bundle.fail("the values of Secrets, to remove them wherever they occur", &error, &redactor);
    }
    match &client {
        Ok(client) => {
            eprintln!("reading the cluster");
            support::collect_cluster(&mut bundle, client, &redactor).await;
        }
        Err(error) => bundle.fail("the cluster", &anyhow::anyhow!("{error:#}"), &redactor),
    }
    eprintln!("reading this host");
    support::collect_host(&mut bundle, &arguments.cluster.data_dir, &arguments.cluster.flags(), &redactor).await;
    for error in bundle.errors() {
        eprintln!("left out: {}", output::printable(error));
    }
    let mut options = std::fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    bundle.write(&name, now.as_second().try_into().unwrap_or_default(), file)?;
    println!("{}", path.display());
    eprintln!("Secrets are removed as far as they can be recognized. Look through it before you give it away.");
    Ok(())
}

/// A redactor that knows the cluster's Secrets, or why it does not.
async fn redactor(client: Option<&Client>) -> anyhow::Result<(Redactor, Option<anyhow::Error>)> {
    let Some(client) = client else { return Ok((Redactor::new(&[])?, None)) };
    let read = async {
        let text = support::get(client, "/api/v1/secrets").await?;
        Ok::<_, anyhow::Error>(support::values_of(&serde_json::from_str(&text)?))
    };
    match read.await {
        Ok(values) => Ok((Redactor::new(&values)?, None)),
        Err(error) => Ok((Redactor::new(&[])?, Some(error))),
    }
}
