//! Keeps the etcd member of this server in order: its vote, the list of endpoints, hangs, fragmentation and lack of space.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use knarr_store::{EtcdAdministration, EtcdMember, MemberStatus, Tls};
use nix::unistd::Pid;
use tokio::sync::watch;

use super::child::EtcdProcess;
use super::member::{Member, MemberFiles, QUOTA_BYTES, local_url, peer_url};

const INTERVAL: Duration = Duration::from_secs(5);
/// While this member has no vote yet.
const LEARNER_INTERVAL: Duration = Duration::from_millis(500);
/// A process that has not responded for this long hangs.
const HANG: Duration = Duration::from_secs(60);
/// A process that has never responded may be reading its database, receiving that of the others, or waiting for them.
const START_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Short, because clocks are set.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(20);
const DEFRAGMENT_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How often room is made in a full database.
const FULL_INTERVAL: Duration = Duration::from_secs(60);
/// Smaller databases are not worth the interruption.
const MIN_DEFRAGMENT_BYTES: u64 = 128 << 20;

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
        let mut defragmented = Instant::now();
        let mut freed: Option<Instant> = None;
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
                    let is_full = status.errors.iter().any(|error| error.contains("NOSPACE"));
                    if is_full && freed.is_none_or(|freed| freed.elapsed() >= FULL_INTERVAL) {
                        freed = Some(Instant::now());
                        self.make_room(&status).await;
                    } else if defragmented.elapsed() >= DEFRAGMENT_INTERVAL && is_fragmented(&status) {
                        defragmented = Instant::now();
                        self.defragment(&status).await;
                    }
                    // Defragmenting may have taken longer than a process that hangs is given.
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

    /// Learns the current members; asks for this one's vote while it has none. Returns whether it has none.
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

    /// Announces the address of this member to the others, if it has changed. They learn it over the connections that this
    /// one opens.
    async fn update_address(&self, members: &[EtcdMember]) {
        let peer = peer_url(self.member.address);
        let Some(own) = moved(members, &self.member.name, &peer) else { return };
        match self.administration.set_peer_url(own, &peer).await {
            Ok(()) => tracing::info!(peer, "this server's etcd has another address now"),
            Err(error) => tracing::warn!(%error, peer, "the other servers do not know this server's address yet"),
        }
    }

    /// Defragments this member while all others are well, so that never two are interrupted at once.
    async fn defragment(&self, status: &MemberStatus) {
        let others: Vec<String> = self.endpoints.borrow().iter().skip(1).cloned().collect();
        for endpoint in &others {
            if let Err(error) = self.administration.status(endpoint).await {
                return tracing::info!(%error, endpoint, "not defragmenting etcd while a member is away");
            }
        }
        tracing::info!(size = status.size, in_use = status.size_in_use, "defragmenting etcd");
        if let Err(error) = self.administration.defragment(&local_url()).await {
            tracing::warn!(%error, "cannot defragment etcd");
        }
    }

    /// Lets etcd accept writes again, if its database is smaller than its limit or can be made so.
    async fn make_room(&self, status: &MemberStatus) {
        if !is_below_limit(status.size_in_use) {
            return tracing::error!(
                in_use = status.size_in_use,
                limit = QUOTA_BYTES,
                "etcd is full and refuses writes: delete objects, such as Events or custom resources"
            );
        }
        if !is_below_limit(status.size) {
            self.defragment(status).await;
        }
        match self.administration.status(&local_url()).await {
            Ok(after) if is_below_limit(after.size) => {
                if let Err(error) = self.administration.clear_space_alarm(after.id).await {
                    tracing::warn!(%error, "cannot clear etcd's alarm about its size");
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "etcd does not respond"),
        }
    }
}

/// The endpoints of all members with a vote; this server's own is first.
pub fn endpoints(members: &[EtcdMember], own: &str) -> Vec<String> {
    let others = members.iter().filter(|member| member.name != own && !member.is_learner);
    let mut endpoints = vec![local_url()];
    endpoints.extend(others.filter_map(|member| member.client_urls.first().cloned()));
    endpoints
}

/// The number of the own member, if the cluster knows another address of it.
fn moved(members: &[EtcdMember], own: &str, peer: &str) -> Option<u64> {
    let own = members.iter().find(|member| member.name == own)?;
    (own.peer_urls != [peer]).then_some(own.id)
}

/// Whether more than half of a large database is free space.
fn is_fragmented(status: &MemberStatus) -> bool {
    status.size >= MIN_DEFRAGMENT_BYTES && status.size_in_use < status.size / 2
}

/// Whether a database of this size is far enough below its limit to allow writes again.
fn is_below_limit(size: u64) -> bool {
    size < QUOTA_BYTES / 10 * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(size: u64, size_in_use: u64) -> MemberStatus {
        MemberStatus {
            id: 1,
            version: String::new(),
            leader: 1,
            raft_index: 1,
            applied_index: 1,
            size,
            size_in_use,
            is_learner: false,
            errors: vec![],
        }
    }

    #[test]
    fn only_large_databases_with_much_free_space_are_defragmented() {
        assert!(!is_fragmented(&status(MIN_DEFRAGMENT_BYTES - 1, 0)));
        assert!(!is_fragmented(&status(MIN_DEFRAGMENT_BYTES, MIN_DEFRAGMENT_BYTES / 2)));
        assert!(is_fragmented(&status(MIN_DEFRAGMENT_BYTES, MIN_DEFRAGMENT_BYTES / 2 - 1)));
        assert!(is_below_limit(QUOTA_BYTES / 2) && !is_below_limit(QUOTA_BYTES));
    }

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
