//! `knarr uninstall`: removes Knarr and everything it created.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::remove::{self, NodeLocation};
use crate::{data_directory_lock, service};

const STOP_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Data directory.
    #[arg(long, default_value = "/var/lib/knarr")]
    pub data_dir: PathBuf,
    /// Parent cgroup of the node's pods.
    #[arg(long, default_value = "/")]
    pub cgroup_root: String,
    /// Keep the data directory: the store, certificates, images and volumes.
    #[arg(long)]
    pub keep_data: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub yes: bool,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let data = std::path::absolute(&arguments.data_dir)?;
    if data.parent().is_none() {
        bail!("{} is not a data directory", data.display());
    }
    if is_foreign(&data) {
        bail!("{} contains files, but Knarr has never used it: nothing is removed", data.display());
    }
    if !arguments.yes && !is_confirmed(&data, arguments.keep_data)? {
        bail!("nothing was removed");
    }
    if !arguments.keep_data
        && let Err(error) = crate::servers::leave(&data).await
    {
        println!(
            "This server is still counted by its cluster ({error:#}): run `knarr server remove` with its name on another one"
        );
    }
    service::stop(&data)?;
    data_directory_lock::stop(&data, STOP_TIMEOUT)?;
    let location = NodeLocation { data: data.clone(), cgroup_root: arguments.cgroup_root.clone() };
    remove::remove_node(&location).await?;
    // Filesystems are unmounted; devices that pods used directly are still attached.
    knarr_local_storage::release(&data.join("storage")).context("cannot detach local volumes")?;
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
    println!("Knarr was removed{}", if arguments.keep_data { "; its data directory was kept" } else { "" });
    Ok(())
}

/// Whether a directory was never used by Knarr. One that was contains its lock file.
fn is_foreign(data: &Path) -> bool {
    let is_empty = std::fs::read_dir(data).map_or(true, |mut entries| entries.next().is_none());
    !is_empty && !data_directory_lock::was_here(data)
}

fn is_confirmed(data: &Path, keeps_data: bool) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("use --yes to remove Knarr without confirmation");
    }
    let files = if keeps_data { String::new() } else { format!(" and everything in {}", data.display()) };
    print!("This stops all pods of this node and removes its runtime, network{files}. Continue? [y/N] ");
    std::io::stdout().flush()?;
    let mut reply = String::new();
    std::io::stdin().lock().read_line(&mut reply).context("cannot read the confirmation")?;
    Ok(matches!(reply.trim(), "y" | "Y" | "yes"))
}
