//! `knarr images import`: brings images onto a node without a registry.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Images,
}

#[derive(Subcommand, Clone, Debug)]
enum Images {
    /// Import an archive of images (docker save or OCI).
    Import {
        /// The archive.
        file: PathBuf,
        /// Where the node keeps its files.
        #[arg(long, default_value = "/var/lib/knarr")]
        data_dir: PathBuf,
        /// Socket of a containerd that is not Knarr's own.
        #[arg(long)]
        containerd: Option<PathBuf>,
    },
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Images::Import { file, data_dir, containerd } = arguments.command;
    let socket = containerd.unwrap_or_else(|| data_dir.join("containerd/containerd.sock"));
    let names = knarr_cri::containerd::import(&socket, &file)
        .await
        .with_context(|| format!("{} cannot be imported", file.display()))?;
    for name in names {
        println!("{name}");
    }
    Ok(())
}
