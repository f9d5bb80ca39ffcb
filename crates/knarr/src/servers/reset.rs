//! `knarr server --cluster-reset`: this server becomes the only one of its cluster, when most of the others are lost.

use anyhow::{Context as _, bail};
use jiff::Timestamp;

use super::member::{Member, MemberFiles, Start};
use super::migration;
use crate::commands::ServerArguments;

/// Revisions that clients may have seen after the snapshot was made.
const SKIPPED_REVISIONS: u64 = 1_000_000_000;

/// Resets the cluster; the server is started without the flag afterwards.
pub async fn run(arguments: &ServerArguments) -> anyhow::Result<()> {
    migration::check_program()?;
    let files = MemberFiles::of(&arguments.apiserver.data_dir);
    let existing = files.load()?;
    let apiserver = &arguments.apiserver;
    // Before anything is changed: the storage may be away.
    let snapshot = match &arguments.servers.cluster_reset_restore_path {
        Some(place) => Some(apiserver.snapshots.storage.fetch(place, &apiserver.data_dir).await?),
        None => None,
    };
    let member = match &existing {
        Some(member) => Member::first(&member.name, member.address),
        None => Member::first(&arguments.node.name()?, super::address(arguments)),
    };
    files.credentials().ensure(&member.name, member.address, Timestamp::now())?;
    match &snapshot {
        Some(file) => {
            let data = files.etcd_data();
            if data.exists() {
                let aside = files.directory().join(format!("data.before-reset-{}", Timestamp::now().as_second()));
                std::fs::rename(&data, &aside).with_context(|| format!("cannot rename {}", data.display()))?;
                println!("moved the old data to {}", aside.display());
            }
            migration::create(&files, &member, Some((file.path(), SKIPPED_REVISIONS))).await?;
        }
        None if existing.is_none() => bail!(
            "{} has no etcd member to reset to: name a snapshot with --cluster-reset-restore-path",
            arguments.apiserver.data_dir.display()
        ),
        None => {
            migration::run_once(&files, &member, &files.etcd_data(), Start::ForceNewCluster).await?;
            files.save(&member)?;
        }
    }
    println!(
        "{} is the only server of its cluster now. Start it without --cluster-reset; on each other server, delete the \
         data directory's etcd, pki and joined.json, and join again with a new token.",
        member.name
    );
    Ok(())
}
