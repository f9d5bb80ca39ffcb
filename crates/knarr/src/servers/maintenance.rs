//! Maintains the etcd member of this server: its vote, the list of endpoints, its certificates, restarts when it hangs,
//! defragmentation and alarms about space (`space`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use knarr_store::{EtcdAdministration, EtcdMember, MemberStatus, Tls};
use nix::unistd::Pid;
use tokio::sync::watch;

use super::child::EtcdProcess;
use super::member::{Member, MemberFiles, QUOTA_BYTES, local_url, peer_url};
use super::space::{Defragmentation, finished_alarms, is_below_limit, is_full, is_turn};

const INTERVAL: Duration = Duration::from_secs(5);
/// The interval while this member has no vote yet.
const LEARNER_INTERVAL: Duration = Duration::from_millis(500);
/// A process that has not responded for this long is restarted.
const HANG: Duration = Duration::from_secs(60);
/// The same for a process that has never responded: it may be reading its database, receiving that of the others, or waiting
/// for them.
const START_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How often certificates are checked. Short, because a change of the clock can make them due at once.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(20);
/// How often a full database is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The member that is maintained.
pub struct Maintenance {
    pub member: Member,
    pub files: MemberFiles,
    pub administration: Arc<EtcdAdministration>,
    pub process: Arc<EtcdProcess>,
    /// Endpoints in order of preference: this server's own first.
    pub endpoints: watch::Sender<Vec<String>>,
    /// The credentials of this server at etcd.
    pub tls: watch::Sender<Tls>,
}

/// The process of the member, and when it responded last or was first seen.
struct Observed {
    pid: Option<Pid>,
    has_responded: bool,
    since: Instant,
}

impl Observed {
    fn new(pid: Option<Pid>) -> Self {
        Self { pid, has_responded: false, since: Instant::now() }
    }

    fn responded(&mut self) {
        (self.has_responded, self.since) = (true, Instant::now());
    }

    /// Whether a restart is due.
    fn hangs(&self, silent: Duration) -> bool {
        silent >= if self.has_responded { HANG } else { START_TIMEOUT }
    }
}

impl Maintenance {
    /// Runs until dropped.
    pub async fn run(self) {
        let mut observed = Observed::new(self.process.pid());
        let mut defragmentation = Defragmentation::new(Instant::now());
        let mut reported: Option<Instant> = None;
        let mut certified = Instant::now();
        loop {
            if certified.elapsed() >= CERTIFICATE_INTERVAL {
                certified = Instant::now();
                if let Err(error) = self.renew_certificates() {
                    tracing::error!(error = format!("{error:#}"), "cannot renew etcd's certificates");
                }
            }
            let is_learner = self.update_members().await;
            tokio::time::sleep(if is_learner { LEARNER_INTERVAL } else { INTERVAL }).await;
            if self.process.pid() != observed.pid {
                observed = Observed::new(self.process.pid());
            }
            match self.administration.status(&local_url()).await {
                Ok(status) => {
                    if is_full(&status) {
                        self.clear_alarms(&status).await;
                        self.report_full(&status, &mut reported);
                    }
                    self.defragment(&status, &mut defragmentation).await;
                    // Defragmenting may have taken longer than the timeout of a process that hangs.
                    observed.responded();
                }
                Err(error) if observed.hangs(observed.since.elapsed()) => {
                    tracing::error!(%error, "etcd has not responded for too long; restarting it");
                    self.process.kill();
                    observed.since = Instant::now();
                }
                Err(error) => tracing::debug!(%error, "etcd does not respond"),
            }
        }
    }

    /// Renews the certificates that are due, and uses them. etcd reads its own again for each connection.
    fn renew_certificates(&self) -> anyhow::Result<()> {
        let files = self.files.credentials();
        files.ensure(&self.member.name, self.member.address, jiff::Timestamp::now())?;
        let tls = files.tls().context("cannot read them")?;
        if *self.tls.borrow() != tls {
            self.administration.set_tls(tls.clone())?;
            self.tls.send_replace(tls);
        }
        Ok(())
    }

    /// Updates the list of members, and requests a vote for this one while it has none. Returns whether it has none.
    async fn update_members(&self) -> bool {
        let members = match self.administration.members().await {
            Ok(members) => members,
            Err(error) => {
                tracing::debug!(%error, "cannot list the members of etcd");
                return false;
            }
        };
        let endpoints = endpoints(&members, &self.member.name);
        if let Err(error) = self.administration.set_endpoints(&endpoints) {
            tracing::warn!(%error, "cannot use the new list of etcd members");
        }
        self.endpoints.send_if_modified(|current| {
            let is_new = *current != endpoints;
            *current = endpoints;
            is_new
        });
        self.update_address(&members).await;
        // A member has no name until it has started for the first time.
        let peer = peer_url(self.member.address);
        let Some(own) = members.iter().find(|member| member.is_learner && member.peer_urls.contains(&peer)) else {
            return false;
        };
        match self.administration.promote(own.id).await {
            Ok(true) => {
                tracing::info!("this server's etcd has a vote now");
                false
            }
            Ok(false) => true,
            Err(error) => {
                tracing::debug!(%error, "etcd gives this member no vote yet");
                true
            }
        }
    }

    /// Announces the address of this member to the others, if it has changed, over the connections that this one opens.
    async fn update_address(&self, members: &[EtcdMember]) {
        let peer = peer_url(self.member.address);
        let Some(own) = moved(members, &self.member.name, &peer) else { return };
        match self.administration.set_peer_url(own, &peer).await {
            Ok(()) => tracing::info!(peer, "this server's etcd has another address now"),
            Err(error) => tracing::warn!(%error, peer, "the other servers do not know this server's address yet"),
        }
    }

    /// Defragments this member when it is its turn.
    async fn defragment(&self, status: &MemberStatus, state: &mut Defragmentation) {
        if !state.is_due(status, Instant::now()) {
            return;
        }
        let is_turn = match self.others(status.id).await {
            Ok(others) => is_turn(status, &others),
            Err(error) => {
                tracing::debug!(%error, "cannot list the members of etcd");
                false
            }
        };
        if !state.is_confirmed(is_turn, Instant::now()) {
            return;
        }
        tracing::info!(size = status.size, in_use = status.size_in_use, "defragmenting etcd");
        if let Err(error) = self.administration.defragment(&local_url()).await {
            tracing::warn!(%error, "cannot defragment etcd");
        }
        state.attempted(status, Instant::now());
    }

    /// The states of all other voting members; `None` for those that do not respond.
    async fn others(&self, own: u64) -> Result<Vec<Option<MemberStatus>>, knarr_store::Error> {
        let members = self.administration.members().await?;
        let mut others = Vec::new();
        for member in members.iter().filter(|member| member.id != own && !member.is_learner) {
            others.push(match member.client_urls.first() {
                Some(url) => self.administration.status(url).await.ok(),
                None => None,
            });
        }
        Ok(others)
    }

    /// Clears alarms about space, so that etcd accepts writes again, once this member has room or the full one was removed.
    async fn clear_alarms(&self, status: &MemberStatus) {
        let cleared = async {
            let alarms = self.administration.space_alarms().await?;
            let members = self.administration.members().await?;
            for id in finished_alarms(&alarms, &members, status) {
                self.administration.clear_space_alarm(id).await?;
                tracing::info!(member = format!("{id:x}"), "etcd accepts writes again: it has room");
            }
            Ok::<(), knarr_store::Error>(())
        };
        if let Err(error) = cleared.await {
            tracing::warn!(%error, "cannot clear etcd's alarm about its size");
        }
    }

    fn report_full(&self, status: &MemberStatus, reported: &mut Option<Instant>) {
        let is_due = reported.is_none_or(|last| last.elapsed() >= REPORT_INTERVAL);
        if is_due && !is_below_limit(status.size_in_use) {
            *reported = Some(Instant::now());
            tracing::error!(
                in_use = status.size_in_use,
                limit = QUOTA_BYTES,
                "etcd is full and refuses writes: delete objects, such as Events or custom resources"
            );
        }
    }
}

/// The endpoints of all voting members; this server's own is first.
pub fn endpoints(members: &[EtcdMember], own: &str) -> Vec<String> {
    let others = members.iter().filter(|member| member.name != own && !member.is_learner);
    let mut endpoints = vec![local_url()];
    endpoints.extend(others.filter_map(|member| member.client_urls.first().cloned()));
    endpoints
}

/// The id of this server's member, if the cluster has another address for it.
fn moved(members: &[EtcdMember], own: &str, peer: &str) -> Option<u64> {
    let own = members.iter().find(|member| member.name == own)?;
    (own.peer_urls != [peer]).then_some(own.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_starts_is_given_more_time_than_one_that_hangs() {
        let mut observed = Observed::new(None);
        assert!(!observed.hangs(HANG) && observed.hangs(START_TIMEOUT));
        observed.responded();
        assert!(observed.hangs(HANG) && !observed.hangs(HANG / 2));
    }

    #[test]
    fn a_member_that_moved_is_found() {
        let member = |id: u64, name: &str| EtcdMember {
            id,
            name: name.to_owned(),
            peer_urls: vec![format!("https://10.0.0.{id}:2380")],
            client_urls: vec![],
            is_learner: false,
        };
        let members = [member(1, "a"), member(2, "b")];
        assert_eq!(moved(&members, "b", "https://10.0.0.2:2380"), None);
        assert_eq!(moved(&members, "b", "https://10.0.0.9:2380"), Some(2));
        assert_eq!(moved(&members, "c", "https://10.0.0.9:2380"), None, "it has not started yet");
    }

    #[test]
    fn the_own_member_is_preferred_and_learners_are_not_used() {
        let member = |name: &str, is_learner| EtcdMember {
            id: 1,
            name: name.to_owned(),
            peer_urls: vec![],
            client_urls: vec![format!("https://{name}:2379")],
            is_learner,
        };
        let members = [member("a", false), member("b", false), member("c", true)];
        assert_eq!(endpoints(&members, "b"), [local_url(), "https://a:2379".to_owned()]);
    }
}
