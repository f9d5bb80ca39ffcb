//! `knarr snapshot save|restore`: saves the store to a file and restores it.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

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
        #[arg(long, default_value_t = 1_000_000)]
        skip_revisions: u64,
    },
}

pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = arguments.data_dir.join("store");
    match arguments.command {
        Snapshot::Save { file } => save(&file, &store),
        Snapshot::Restore { file, skip_revisions } => restore(&file, &store, skip_revisions),
    }
}

fn save(file: &Path, store: &Path) -> anyhow::Result<()> {
    if !store.exists() {
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
    let revision = knarr_store::export(store, &mut image)
        .with_context(|| format!("cannot save the store in {}", store.display()))?;
    image.flush()?;
    image.get_ref().sync_all()?;
    std::fs::rename(&beside, file).with_context(|| format!("cannot write {}", file.display()))?;
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
