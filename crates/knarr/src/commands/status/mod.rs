//! `knarr status`: the cluster on one screen. Health, nodes, servers, store, certificates, snapshots, problems.
//!
//! What the API server knows is read with the user's kubeconfig; what only the files of a server show is added where this
//! host is one of the cluster's servers. Each section stands for itself: one that cannot be read says why. It fails if the API
//! server does not respond.

mod certificates;
mod cluster;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use knarr_client::kube::Config;

use super::{ClientArguments, LastSnapshot, Occasion};
use crate::output::printable;
use crate::paths::is_server;
use crate::servers;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(flatten)]
    cluster: ClientArguments,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let data = &arguments.cluster.data_dir;
    let config = match arguments.cluster.config().await {
        Ok(config) => config,
        // A server that cannot start has no kubeconfig yet; its files still say something.
        Err(error) if is_server(data) => {
            print!("{}", section("API server", &format!("{error:#}\n")));
            print_host(data).await;
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    let is_local = is_server(data) && has_same_authority(&config, data);
    let client = arguments.cluster.client().await?;
    let reached = cluster::print(&client, &config.cluster_url.to_string()).await;
    if let Err(error) = &reached {
        print!(
            "{}",
            section("Health", &format!("the API server does not respond: {error:#}\n`knarr logs` shows why\n"))
        );
    }
    if is_local {
        print_host(data).await;
    }
    reached.context("the API server does not respond")?;
    cluster::print_problems(&client).await;
    Ok(())
}

/// What the files of this server show.
async fn print_host(data: &Path) {
    match servers::status(data).await {
        Ok(None) => {}
        Ok(Some(text)) => print!("{}", section("Servers", &text)),
        Err(error) => print!("{}", section("Servers", &format!("{error:#}\n"))),
    }
    let now = Timestamp::now();
    print!("{}", section("Certificates of this server", &certificates::describe(data, now)));
    print!("{}", section("Snapshots", &snapshots(data)));
}

/// Whether the kubeconfig is for the cluster of this server: its authority is the server's.
fn has_same_authority(config: &Config, data: &Path) -> bool {
    let own = certificates::authority(data);
    own.is_some_and(|own| config.root_cert.iter().flatten().any(|known| *known == own))
}

/// A heading and indented lines.
fn section(title: &str, text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("  {}\n", printable(line).trim_end())).collect();
    format!("\n{title}\n{lines}")
}

fn snapshots(data: &Path) -> String {
    let describe = |last: LastSnapshot| format!("{} ({}, revision {})", last.time, last.file.display(), last.revision);
    let saved = LastSnapshot::load(data, Occasion::Command)
        .map_or_else(|| "none from this host; `knarr snapshot save FILE` saves one".to_owned(), describe);
    // A server of an older version notes nothing.
    let scheduled = LastSnapshot::load(data, Occasion::Schedule).map(describe);
    let scheduled = scheduled.or_else(|| Some(newest_file(&data.join("snapshots"))?.display().to_string()));
    let scheduled = scheduled.map(|text| format!("Last scheduled snapshot: {text}\n")).unwrap_or_default();
    format!("Last snapshot: {saved}\n{scheduled}")
}

/// The newest snapshot in a directory; their names contain the time.
fn newest_file(directory: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "snapshot")).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_cluster_cannot_steer_the_terminal() {
        assert_eq!(section("Nodes", "a\u{1b}[2Jb\n"), "\nNodes\n  a\\u{1b}[2Jb\n");
    }

    #[test]
    fn the_newest_scheduled_snapshot_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let scheduled = directory.path().join("snapshots");
        std::fs::create_dir(&scheduled).unwrap();
        for name in ["20260101T000000Z.snapshot", "20260301T000000Z.snapshot", "20260401T000000Z.partial"] {
            std::fs::write(scheduled.join(name), "").unwrap();
        }
        let text = snapshots(directory.path());
        assert!(text.contains("none from this host") && text.contains("20260301T000000Z.snapshot"), "{text}");
        // The server saves them elsewhere.
        let last = LastSnapshot { file: "/backup/a.snapshot".into(), revision: 7, time: "2026-05-01T00:00:00Z".into() };
        last.save(directory.path(), Occasion::Schedule).unwrap();
        let text = snapshots(directory.path());
        assert!(text.ends_with("snapshot: 2026-05-01T00:00:00Z (/backup/a.snapshot, revision 7)\n"), "{text}");
    }
}
