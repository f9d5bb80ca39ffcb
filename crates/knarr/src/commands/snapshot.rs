//! `knarr snapshot save|restore`: saves the store to a file and restores it.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use knarr_store::Store as _;
use serde::{Deserialize, Serialize};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Snapshot,
    /// Data directory of the server.
    #[arg(long, global = true, default_value = "/var/lib/knarr")]
    data_dir: PathBuf,
}

#[derive(Subcommand, Clone, Debug)]
enum Snapshot {
    /// Save the store to a file. The server may be running.
    Save { file: PathBuf },
    /// Restore the store from a file. The data directory must not contain a store.
    Restore {
        file: PathBuf,
        /// Number of revisions to skip, so that clients notice that the store was restored.
        #[arg(long, default_value_t = 1_000_000_000)]
        skip_revisions: u64,
    },
}

/// The last snapshot that was made on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSnapshot {
    pub file: PathBuf,
    pub revision: u64,
    pub time: String,
}

impl LastSnapshot {
    fn path(data: &Path) -> PathBuf {
        data.join("last-snapshot.json")
    }

    pub fn load(data: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(Self::path(data)).ok()?).ok()
    }

    fn save(&self, data: &Path) -> anyhow::Result<()> {
        let path = Self::path(data);
        std::fs::write(&path, serde_json::to_vec(self)?).with_context(|| format!("cannot write {}", path.display()))
    }
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = arguments.data_dir.join("store");
    match arguments.command {
        Snapshot::Save { file } => save(&file, &arguments.data_dir).await,
        Snapshot::Restore { file, .. } if crate::servers::has_member(&arguments.data_dir)? => bail!(
            "this server keeps its objects in etcd: stop all servers of the cluster, and restore with \
             `knarr server --cluster-reset --cluster-reset-restore-path {}`",
            file.display()
        ),
        Snapshot::Restore { file, skip_revisions } => restore(&file, &store, skip_revisions),
    }
}

async fn save(file: &Path, data: &Path) -> anyhow::Result<()> {
    let shared = crate::servers::connect_store(data).await?;
    let store = data.join("store");
    if shared.is_none() && !store.exists() {
        bail!(
            "there is no store in {}: set --data-dir to the server's data directory (save a store in etcd with etcdctl)",
            store.display()
        );
    }
    let beside = file.with_extension("partial");
    // It contains secrets.
    let mut options = File::options();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&beside);
    let mut image = BufWriter::new(opened.with_context(|| format!("cannot write {}", beside.display()))?);
    let revision = match shared {
        Some(store) => store.snapshot(&mut image).await.context("cannot save the store in etcd")?,
        None => knarr_store::export(&store, &mut image)
            .with_context(|| format!("cannot save the store in {}", store.display()))?,
    };
    image.flush()?;
    image.get_ref().sync_all()?;
    knarr_files::rename_durably(&beside, file).with_context(|| format!("cannot write {}", file.display()))?;
    LastSnapshot { file: file.to_owned(), revision, time: format!("{:.0}", Timestamp::now()) }.save(data)?;
    println!("saved revision {revision} to {}", file.display());
    Ok(())
}

fn restore(file: &Path, store: &Path, skip: u64) -> anyhow::Result<()> {
    if store.exists() {
        bail!("{} already exists: move it away first", store.display());
    }
    let image = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let revision = knarr_store::restore(BufReader::new(image), store, skip)
        .with_context(|| format!("cannot restore {}", file.display()))?;
    println!("restored to {} at revision {revision}", store.display());
    Ok(())
}
