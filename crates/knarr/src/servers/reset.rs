//! `knarr server --cluster-reset`: this server becomes the only one of its cluster, when most of the others are lost.

use std::path::Path;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use knarr_store::SkippedRevisions;

use super::member::{Member, MemberFiles, Start};
use super::{ThisServer, migration};

/// Revisions that clients may have seen after those that this server has, or after the snapshot was made.
const SKIPPED_REVISIONS: u64 = 1_000_000_000;

/// Resets the cluster, to the data of a snapshot if there is one; the server is started without the flag afterwards.
pub async fn run(this: &ThisServer, snapshot: Option<&Path>) -> anyhow::Result<()> {
    let files = MemberFiles::of(&this.data);
    let existing = files.load()?;
    let member = match existing.clone() {
        // All hosts may have other addresses now: one of the reasons to do this.
        Some(member) => {
            let member = super::with_current_address(member, this, &files)?;
            Member::first(&member.name, member.address)
        }
        None => Member::first(&this.name, this.address()?),
    };
    files.credentials().ensure(&member.name, member.address, Timestamp::now())?;
    match (snapshot, existing) {
        (Some(file), _) => {
            if let Some(aside) = migration::create(&files, &member, file, SKIPPED_REVISIONS).await? {
                println!("moved the old data to {}", aside.display());
            }
        }
        (None, None) => bail!(
            "{} has no etcd member to reset to: name a snapshot with --cluster-reset-restore-path",
            this.data.display()
        ),
        (None, Some(_)) => {
            let member = member.with_data();
            files.check_data(&member)?;
            let (data, image) = (files.etcd_data(), migration::image_file(&files));
            let skipped = SkippedRevisions { seen: 0, after: SKIPPED_REVISIONS };
            // The members that are lost may have had writes that this one has not, and clients may have seen them.
            let saved = migration::run_once(&files, &member, &data, Start::ForceNewCluster, Some(&image)).await;
            let imported = saved.and_then(|()| migration::import(&image, &data, skipped));
            let removed = std::fs::remove_file(&image);
            imported?;
            removed.with_context(|| format!("cannot remove {}", image.display()))?;
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
