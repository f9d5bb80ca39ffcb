//! The servers of the cluster, their etcd members, and who leads what.

use std::path::Path;

use anyhow::Context as _;
use knarr_store::{EtcdAdministration, EtcdMember, MemberStatus};

use super::member::{MemberFiles, host, local_url};
use super::{initial_endpoints, presence};
use crate::output::table;
use crate::paths::kubeconfig;

/// The servers and who leads what; `None` for the only server of a cluster.
pub async fn describe(data: &Path) -> anyhow::Result<Option<String>> {
    if MemberFiles::of(data).load()?.is_none() {
        return Ok(None);
    }
    let servers = servers(data).await?;
    let leaders = match leaders(data).await {
        Ok(text) => text,
        Err(error) => format!("The API server does not respond: {error:#}\n"),
    };
    Ok(Some(format!("{servers}\n{leaders}")))
}

async fn servers(data: &Path) -> anyhow::Result<String> {
    let files = MemberFiles::of(data);
    let own = files.load()?.context("no member")?;
    let tls = files.credentials().tls().context("cannot read etcd's certificates")?;
    let administration = EtcdAdministration::new(&initial_endpoints(&own), Some(&tls))?;
    // Without a quorum, the member on this host still knows the others.
    let members = administration.members_at(&local_url()).await;
    let members = match members {
        Ok(members) => members,
        Err(_) => administration.members().await.context("cannot list the servers: etcd does not respond")?,
    };
    let mut states = Vec::new();
    for member in members {
        let status = match member.client_urls.first() {
            Some(url) => administration.status(url).await.ok(),
            None => None,
        };
        states.push((member, status));
    }
    Ok(render(&states))
}

/// A table of the servers. The lag is the number of raft entries that a member has yet to apply.
fn render(states: &[(EtcdMember, Option<MemberStatus>)]) -> String {
    let newest = states.iter().filter_map(|(_, status)| status.as_ref()).map(|status| status.raft_index).max();
    let mut rows: Vec<[String; 7]> = states
        .iter()
        .map(|(member, status)| {
            let address = host(member).unwrap_or_default();
            let name = if member.name.is_empty() { "(not started)".to_owned() } else { member.name.clone() };
            let Some(status) = status else {
                let silent = "does not respond".to_owned();
                return [name, address, role(member, None), silent, String::new(), String::new(), String::new()];
            };
            let state = match (status.leader, status.errors.first()) {
                (0, _) => "no quorum".to_owned(),
                (_, Some(error)) => error.clone(),
                _ => "healthy".to_owned(),
            };
            let lag = newest.unwrap_or_default().saturating_sub(status.applied_index).to_string();
            let size = format!("{:.1} MiB", status.size as f64 / f64::from(1 << 20));
            [name, address, role(member, Some(status)), state, lag, size, status.version.clone()]
        })
        .collect();
    rows.sort();
    table(["SERVER", "ADDRESS", "ETCD", "STATE", "LAG", "SIZE", "VERSION"], &rows)
}

fn role(member: &EtcdMember, status: Option<&MemberStatus>) -> String {
    let role = match status {
        _ if member.is_learner => "learner",
        Some(status) if status.leader == member.id => "leader",
        _ => "member",
    };
    role.to_owned()
}

async fn leaders(data: &Path) -> anyhow::Result<String> {
    let client = crate::admin_client::connect(&kubeconfig(data)).await?;
    let holders = presence::leaders(&client).await?;
    let rows: Vec<[String; 2]> = holders.into_iter().map(|(lease, holder)| [lease, holder]).collect();
    if rows.is_empty() {
        return Ok("All components run on this server.\n".to_owned());
    }
    Ok(table(["COMPONENT", "RUNS ON"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_leader_lag_and_silence() {
        let member = |id: u64, name: &str, is_learner| EtcdMember {
            id,
            name: name.to_owned(),
            peer_urls: vec![format!("https://10.0.0.{id}:2380")],
            client_urls: vec![],
            is_learner,
        };
        let status = |id, applied_index| MemberStatus {
            id,
            version: "3.6.8".into(),
            leader: 1,
            raft_index: 100,
            applied_index,
            size: 3 << 20,
            size_in_use: 1 << 20,
            is_learner: false,
            errors: vec![],
        };
        let text = render(&[
            (member(2, "two", false), Some(status(2, 90))),
            (member(1, "one", false), Some(status(1, 100))),
            (member(3, "three", true), None),
        ]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["one", "10.0.0.1", "leader", "healthy", "0", "3.0", "MiB", "3.6.8"]);
        assert_eq!(lines[2], ["three", "10.0.0.3", "learner", "does", "not", "respond"]);
        assert_eq!(lines[3], ["two", "10.0.0.2", "member", "healthy", "10", "3.0", "MiB", "3.6.8"]);
    }
}
