//! `knarr server remove NAME`: removes a server from the cluster, if enough others remain. `knarr uninstall` removes the
//! server of its host in the same way.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_store::{EtcdAdministration, EtcdMember};

use super::initial_endpoints;
use super::member::{Member, MemberFiles, server_name};

/// Each server that does not respond takes two seconds of it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Name of the server, as `knarr status` shows it; the address of one that has never started.
    pub name: String,
    /// Data directory of the server on this host.
    #[arg(long, default_value = crate::paths::DATA)]
    pub data_dir: PathBuf,
    /// Remove it even if the remaining servers that respond are too few to go on.
    #[arg(long)]
    pub force: bool,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let files = MemberFiles::of(&arguments.data_dir);
    let own = files.load()?.with_context(|| {
        format!("{} has no etcd member: run this on a server of the cluster", arguments.data_dir.display())
    })?;
    let tls = files.credentials().tls().context("cannot read etcd's certificates")?;
    let administration = EtcdAdministration::new(&initial_endpoints(&own), Some(&tls))?;
    let members = administration.members().await.context("cannot list the servers")?;
    let Some(member) = members.iter().find(|member| server_name(member) == arguments.name) else {
        let names: Vec<String> = members.iter().map(server_name).collect();
        bail!("there is no server {}; there are {}", arguments.name, names.join(", "));
    };
    if let Some(reason) = objection(&members, &responding(&administration, &members).await, member.id)
        && !arguments.force
    {
        bail!("{reason}");
    }
    administration.remove(member.id).await.with_context(|| format!("cannot remove {}", arguments.name))?;
    println!(
        "removed server {0}. Run `knarr uninstall` there, and `kubectl delete node {0}` if it ran pods.",
        arguments.name
    );
    Ok(())
}

/// Removes the server of this host from its cluster before its data is deleted; the last server stays a cluster of its own.
pub async fn leave(data: &Path) -> anyhow::Result<()> {
    let files = MemberFiles::of(data);
    let Some(own) = files.load()? else { return Ok(()) };
    let left = tokio::time::timeout(LEAVE_TIMEOUT, leave_as(&files, &own)).await;
    left.unwrap_or_else(|_| bail!("the other servers do not respond"))
}

async fn leave_as(files: &MemberFiles, own: &Member) -> anyhow::Result<()> {
    let tls = files.credentials().tls().context("cannot read etcd's certificates")?;
    let administration = EtcdAdministration::new(&initial_endpoints(own), Some(&tls))?;
    let members = administration.members().await.context("cannot list the servers")?;
    let Some(member) = members.iter().find(|member| member.name == own.name) else { return Ok(()) };
    if members.len() == 1 {
        return Ok(());
    }
    if let Some(reason) = objection(&members, &responding(&administration, &members).await, member.id) {
        bail!("{reason}");
    }
    administration.remove(member.id).await.context("the other servers refuse")
}

/// The members that respond and know a leader.
async fn responding(administration: &EtcdAdministration, members: &[EtcdMember]) -> Vec<u64> {
    let mut responding = Vec::new();
    for member in members {
        if let Some(url) = member.client_urls.first()
            && administration.status(url).await.is_ok_and(|status| status.leader != 0)
        {
            responding.push(member.id);
        }
    }
    responding
}

/// Why removing a member would stop the cluster.
fn objection(members: &[EtcdMember], responding: &[u64], removed: u64) -> Option<String> {
    let voting: Vec<u64> = members.iter().filter(|member| !member.is_learner).map(|member| member.id).collect();
    let remaining: Vec<u64> = voting.iter().copied().filter(|id| *id != removed).collect();
    if remaining.is_empty() {
        return Some("it is the last server of the cluster: use `knarr uninstall` there".to_owned());
    }
    let alive = remaining.iter().filter(|id| responding.contains(id)).count();
    let needed = remaining.len() / 2 + 1;
    (alive < needed).then(|| {
        format!(
            "of the {} servers that would remain, {alive} respond and {needed} must: start or remove others first, \
             or use --force",
            remaining.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_stops_the_cluster_is_refused() {
        let members: Vec<EtcdMember> = (1..=3)
            .map(|id| EtcdMember {
                id,
                name: id.to_string(),
                peer_urls: vec![],
                client_urls: vec![],
                is_learner: false,
            })
            .collect();
        for (count, responding, removed, is_refused) in [
            (3, vec![1, 2, 3], 3, false),
            (3, vec![1, 2], 3, false),
            (3, vec![1, 3], 3, true),
            (2, vec![1, 2], 2, false),
            (2, vec![2], 2, true),
            (1, vec![1], 1, true),
        ] {
            let refused = objection(&members[..count], &responding, removed).is_some();
            assert_eq!(refused, is_refused, "{count} {responding:?} {removed}");
        }
    }
}
