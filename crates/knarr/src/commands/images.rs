//! `knarr images import`: imports images into a node without a registry.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Images,
    /// Data directory.
    #[arg(long, global = true, default_value = "/var/lib/knarr")]
    data_dir: PathBuf,
    /// Socket of another containerd than Knarr's own.
    #[arg(long, global = true)]
    containerd: Option<PathBuf>,
}

#[derive(Subcommand, Clone, Debug)]
enum Images {
    /// Import an archive of images (docker save or OCI).
    Import {
        /// The archive file.
        file: PathBuf,
    },
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Images::Import { file } = arguments.command;
    let socket = arguments.containerd.unwrap_or_else(|| arguments.data_dir.join("containerd/containerd.sock"));
    if let Err(error) = std::fs::File::open(&file) {
        bail!("cannot read {}: {error}", file.display());
    }
    if !socket.exists() {
        bail!(
            "no containerd at {}: is Knarr running, and is --data-dir right? Archives in `images` below the data \
             directory are imported at startup",
            socket.display()
        );
    }
    let names = knarr_cri::containerd::import(&socket, &file)
        .await
        .with_context(|| format!("cannot import {}", file.display()))?;
    for name in names {
        println!("{name}");
    }
    Ok(())
}
