//! `knarr snapshot save|restore`: the store in one file.

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
    /// Where the server keeps its files.
    #[arg(long, global = true, default_value = "/var/lib/knarr")]
    data_dir: PathBuf,
}

#[derive(Subcommand, Clone, Debug)]
enum Snapshot {
    /// Write the store to a file. The server may run meanwhile.
    Save { file: PathBuf },
    /// Make a store from a file. The data directory must not hold one.
    Restore {
        file: PathBuf,
        /// Let the restored store's revisions begin so much later, so that clients notice that it is another.
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
            "there is no store in {}: --data-dir names where the server keeps its files (a store in etcd is saved with etcdctl)",
            store.display()
        );
    }
    let beside = file.with_extension("partial");
    // It holds secrets.
    let mut options = File::options();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&beside);
    let mut image = BufWriter::new(opened.with_context(|| format!("cannot write {}", beside.display()))?);
    let revision = knarr_store::export(store, &mut image)
        .with_context(|| format!("the store in {} cannot be saved", store.display()))?;
    image.flush()?;
    image.get_ref().sync_all()?;
    std::fs::rename(&beside, file).with_context(|| format!("cannot write {}", file.display()))?;
    println!("saved revision {revision} to {}", file.display());
    Ok(())
}

fn restore(file: &Path, store: &Path, skip: u64) -> anyhow::Result<()> {
    if store.exists() {
        bail!("{} exists already: move it away first", store.display());
    }
    let image = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let revision = knarr_store::restore(BufReader::new(image), store, skip)
        .with_context(|| format!("{} cannot be restored", file.display()))?;
    println!("restored to {} at revision {revision}", store.display());
    Ok(())
}
