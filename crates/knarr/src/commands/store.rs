//! `knarr store check|repair|compact`: maintenance of the embedded store of a stopped server.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use knarr_store::CheckReport;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Maintenance,
    /// Data directory of the server.
    #[arg(long, global = true, default_value = super::common::DATA)]
    data_dir: PathBuf,
}

#[derive(Subcommand, Clone, Debug)]
enum Maintenance {
    /// Read the whole store and verify its checksums.
    Check,
    /// Keep everything before the first damage; the damaged files are kept beside the store.
    Repair,
    /// Replace the log by an image of the current objects.
    Compact,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let store = arguments.data_dir.join("store");
    match arguments.command {
        Maintenance::Check => {
            let report = knarr_store::check(&store).with_context(|| format!("{} is not usable", store.display()))?;
            println!("the store is intact: {}", rendered(&report));
        }
        Maintenance::Compact => {
            let report = knarr_store::compact(&store).context("cannot compact the store")?;
            println!("compacted the store: {}", rendered(&report));
        }
        Maintenance::Repair => {
            let (report, damage, kept) = knarr_store::repair(&store).context("cannot repair the store")?;
            match (damage, kept) {
                (Some(damage), Some(kept)) => {
                    println!("damage: {damage}");
                    println!("repaired the store: {}", rendered(&report));
                    println!("what was written after the damage is lost; the old files are in {}", kept.display());
                }
                _ => println!("there is nothing to repair: {}", rendered(&report)),
            }
        }
    }
    Ok(())
}

fn rendered(report: &CheckReport) -> String {
    let CheckReport { revision, entries, disk_bytes, data_bytes, torn } = report;
    let torn = if *torn { "; an incomplete last write will be dropped" } else { "" };
    format!("revision {revision}, {entries} objects of {data_bytes} bytes, {disk_bytes} bytes on disk{torn}")
}
