//! `knarr uninstall`: the machine as it was before.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::remove::{self, Place};
use crate::{running, service};

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Where Knarr keeps its files.
    #[arg(long, default_value = "/var/lib/knarr")]
    pub data_dir: PathBuf,
    /// The cgroup below which the node's pods live.
    #[arg(long, default_value = "/")]
    pub cgroup_root: String,
    /// Keep the data directory: the store, certificates, images and volumes.
    #[arg(long)]
    pub keep_data: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let data = std::path::absolute(&arguments.data_dir)?;
    if data.parent().is_none() {
        bail!("{} is no data directory", data.display());
    }
    if is_foreign(&data) {
        bail!("{} holds files, but Knarr has never run on it: nothing is removed", data.display());
    }
    if !arguments.yes && !is_confirmed(&data, arguments.keep_data)? {
        bail!("nothing was removed");
    }
    service::stop(&data)?;
    running::stop(&data, PATIENCE)?;
    let place = Place { data: data.clone(), cgroup_root: arguments.cgroup_root.clone() };
    remove::remove_node(&place).await?;
    service::remove(&data)?;
    match std::fs::remove_file(knarr_kubelet::LOGIND_FILE) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", knarr_kubelet::LOGIND_FILE));
        }
        _ => {}
    }
    if !arguments.keep_data {
        remove::remove_files(&data)?;
        if data == Path::new(super::common::DATA) {
            remove::remove_files(Path::new(super::common::CONFIGURATION))?;
        }
    }
    println!("Knarr is removed{}", if arguments.keep_data { "; its data are kept" } else { "" });
    Ok(())
}

/// Whether a folder is somebody else's. One that Knarr has run on holds its lock.
fn is_foreign(data: &Path) -> bool {
    let is_empty = std::fs::read_dir(data).map_or(true, |mut entries| entries.next().is_none());
    !is_empty && !running::was_here(data)
}

fn is_confirmed(data: &Path, keeps_data: bool) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("say --yes to remove Knarr without being asked");
    }
    let files = if keeps_data { String::new() } else { format!(" and everything in {}", data.display()) };
    print!("This ends all pods of this node and removes its runtime, network{files}. Go on? [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("no answer can be read")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
