//! Several servers of one cluster.
//!
//! Every server runs the API server and a member of etcd (`member`, `child`, `maintenance`, `space`). The first one starts the
//! cluster and moves its store into etcd (`migration`). Further ones request admission with a token (`joining`, `admission`) and
//! receive the authorities, keys and settings that all servers share (`bundle`, `seal`). Components that must run once per
//! cluster run on the server that holds a Lease (`elections`). New keys are rolled out over all servers (`rollout`). `reset` and
//! `remove` shrink a cluster, `status` shows it.

mod admission;
mod bundle;
mod child;
mod credentials;
mod elections;
mod joining;
mod maintenance;
mod member;
mod migration;
mod presence;
mod record;
mod remove;
mod reset;
pub mod rollout;
mod seal;
mod space;
mod status;
mod this_server;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use knarr_store::{Decode, Etcd, EtcdAdministration, EtcdOptions, Tls};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::join::JoinToken;
use crate::snapshot_place::SnapshotPlace;

pub use admission::{Host, open as admit_servers, pages};
pub use bundle::{SharedSettings, received_encryption, shared_settings};
use child::{EtcdProcess, State};
pub use elections::{Elections, fenced};
use maintenance::Maintenance;
pub use member::{Member, write_private};
use member::{MemberFiles, Start, client_url, local_url};
pub use migration::check_program;
pub use presence::{label_node, renew_identity};
pub use record::{check as check_record, ensure as ensure_record};
pub use remove::{Arguments as RemoveArguments, leave, run as remove};
pub use reset::run as reset;
pub use status::describe as status;
pub use this_server::ThisServer;

pub const CONTROLLERS_LEASE: &str = "kube-controller-manager";
pub const SCHEDULER_LEASE: &str = "kube-scheduler";
pub const NETWORK_LEASE: &str = "knarr-network";
/// The Leases by which servers elect who does what.
const LEASES: [&str; 3] = [CONTROLLERS_LEASE, SCHEDULER_LEASE, NETWORK_LEASE];

const POLL: Duration = Duration::from_millis(100);
const TASK_POLL: Duration = Duration::from_secs(1);
/// How long the start waits for other servers before it logs that.
const WARNING_DELAY: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Several servers")]
pub struct ServersArguments {
    /// Start a cluster that further servers can join: objects are kept in etcd, which Knarr runs on each server. A store
    /// that exists is moved there.
    #[arg(long, conflicts_with_all = ["server", "datastore"])]
    pub cluster_init: bool,
    /// Join a cluster as a further server: URL of one of its servers, such as https://10.0.0.1:6443.
    #[arg(long, requires = "token")]
    pub server: Option<http::Uri>,
    /// Token printed by `knarr token create --role server` on a server.
    #[arg(long, env = "KNARR_TOKEN", hide_env_values = true)]
    pub token: Option<JoinToken>,
    /// Make this server the only one of its cluster, with its data, and exit: when most servers are lost.
    #[arg(long)]
    pub cluster_reset: bool,
    /// With --cluster-reset: use the data of this snapshot, a file or an object such as s3://BUCKET/KEY.
    #[arg(long, requires = "cluster_reset", value_name = "FILE")]
    pub cluster_reset_restore_path: Option<SnapshotPlace>,
}

/// The etcd member of this server, and its task.
pub struct Managed {
    pub administration: Arc<EtcdAdministration>,
    process: Arc<EtcdProcess>,
    endpoints: watch::Receiver<Vec<String>>,
    tls: watch::Receiver<Tls>,
    files: MemberFiles,
    task: JoinHandle<()>,
}

/// Joins or starts a cluster as the flags say; a server that already belongs to one needs no flags. Returns the etcd member that
/// this server runs, if any.
pub async fn configure(this: &ThisServer) -> anyhow::Result<Option<Member>> {
    rollout::install_pending(&this.data, &this.encryption_file())?;
    let files = MemberFiles::of(&this.data);
    let existing = files.load()?;
    let has_store = this.datastore.is_empty();
    Ok(match first_step(existing, &this.flags, bundle::has_joined(&this.data), has_store) {
        FirstStep::Continue(member) => {
            migration::finish(&files, &this.store);
            Some(with_current_address(member, this, &files)?)
        }
        FirstStep::Join(server) => join(this, &server, &files).await?,
        FirstStep::Initialize => Some(initialize(this, &files).await?),
        FirstStep::None => None,
        FirstStep::Refuse => bail!(
            "this host is a server of a cluster, but its member of etcd is missing: let it join again with --server and a \
             new token. To make it a cluster of its own, delete pki and joined.json in {} first",
            this.data.display()
        ),
    })
}

/// The first step of a start.
#[derive(Debug, PartialEq, Eq)]
enum FirstStep {
    /// Runs its existing member.
    Continue(Member),
    Join(http::Uri),
    Initialize,
    /// Uses an embedded store, or the etcd that a flag names.
    None,
    /// Fails: an embedded store would make a second cluster with the keys of the first.
    Refuse,
}

/// Chooses the first step. `has_joined`: the server has the keys of a cluster that it joined. If it nevertheless has no member,
/// and no flag names an etcd (`has_store`), its join was interrupted or it was removed from the cluster.
fn first_step(existing: Option<Member>, flags: &ServersArguments, has_joined: bool, has_store: bool) -> FirstStep {
    match (existing, &flags.server) {
        (Some(member), _) => FirstStep::Continue(member),
        (None, Some(server)) if has_store || !has_joined => FirstStep::Join(server.clone()),
        (None, _) if has_store && has_joined => FirstStep::Refuse,
        (None, _) if flags.cluster_init => FirstStep::Initialize,
        (None, _) => FirstStep::None,
    }
}

/// The member with the current address of the host; `maintenance` announces it to the other members.
fn with_current_address(member: Member, this: &ThisServer, files: &MemberFiles) -> anyhow::Result<Member> {
    let current = this.given_address.or_else(|| crate::address::moved_from(member.address));
    let Some(address) = current.filter(|address| *address != member.address) else { return Ok(member) };
    tracing::info!(from = %member.address, to = %address, "this server has another address now");
    let moved = member.at(address);
    files.save(&moved)?;
    Ok(moved)
}

async fn join(this: &ThisServer, server: &http::Uri, files: &MemberFiles) -> anyhow::Result<Option<Member>> {
    let Some(token) = &this.flags.token else { bail!("--server needs --token") };
    let needs_member = this.datastore.is_empty();
    if needs_member {
        migration::check_program()?;
        if this.store.exists() {
            let data = this.data.display();
            bail!("{data} contains a store of its own: a server that joins needs an empty data directory");
        }
    }
    let address = this.address()?;
    let bundle = joining::join(server, token, &this.name, address, needs_member).await?;
    bundle.install(&this.data)?;
    let Some(initial_cluster) = bundle.initial_cluster else { return Ok(None) };
    migration::remove_directory(&files.etcd_data())?;
    let member = Member::joining(&this.name, address, initial_cluster);
    files.save(&member)?;
    Ok(Some(member))
}

async fn initialize(this: &ThisServer, files: &MemberFiles) -> anyhow::Result<Member> {
    migration::check_program()?;
    let member = Member::first(&this.name, this.address()?);
    files.credentials().ensure(&member.name, member.address, Timestamp::now())?;
    if this.store.exists() {
        migration::move_store(files, &member, &this.store).await?;
    } else {
        files.save(&member)?;
    }
    files.load()?.context("the member was not noted")
}

impl Managed {
    /// Starts the member and waits until it takes part in the cluster: it has a vote, and there is a leader.
    pub async fn start(member: Member, data: &Path) -> anyhow::Result<Self> {
        let files = MemberFiles::of(data);
        files.check_data(&member)?;
        files.credentials().ensure(&member.name, member.address, Timestamp::now())?;
        let tls = files.credentials().tls().context("cannot read etcd's certificates")?;
        let first = initial_endpoints(&member);
        let administration = Arc::new(EtcdAdministration::new(&first, Some(&tls))?);
        let (command, command_files) = (member.clone(), files.clone());
        let etcd_data = files.etcd_data();
        let process = EtcdProcess::start(move || command.command(&command_files, &etcd_data, Start::Normal))?;
        let process = Arc::new(process);
        let (endpoints, endpoint_changes) = watch::channel(first);
        let (tls, tls_changes) = watch::channel(tls);
        let maintenance = Maintenance {
            member: member.clone(),
            files: files.clone(),
            administration: Arc::clone(&administration),
            process: Arc::clone(&process),
            endpoints,
            tls,
        };
        let task = tokio::spawn(maintenance.run());
        let managed = Self { administration, process, endpoints: endpoint_changes, tls: tls_changes, files, task };
        managed.wait_for_quorum().await?;
        managed.files.record_data(&member)?;
        Ok(managed)
    }

    async fn wait_for_quorum(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut is_logged = false;
        loop {
            if *self.process.state.borrow() == State::Removed {
                bail!("{}", removed_message(&self.files));
            }
            match self.administration.status(&local_url()).await {
                Ok(status) if status.leader != 0 && !status.is_learner => return Ok(()),
                _ => {}
            }
            if started.elapsed() > WARNING_DELAY && !std::mem::replace(&mut is_logged, true) {
                tracing::warn!("waiting for etcd: most of the cluster's servers must be running");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Opens the store; values of other programs are converted by `decode`.
    pub async fn open_store(&self, decode: Decode) -> anyhow::Result<Etcd> {
        loop {
            let options = EtcdOptions {
                decode: Some(decode.clone()),
                endpoints: Some(self.endpoints.clone()),
                tls: Some(self.tls.clone()),
                ..EtcdOptions::default()
            };
            let (endpoints, tls) = (self.endpoints.borrow().clone(), self.tls.borrow().clone());
            match Etcd::connect(&endpoints, Some(tls), options).await {
                Ok(store) => return Ok(store),
                Err(error) => tracing::warn!(%error, "cannot read the store yet"),
            }
            self.wait_for_quorum().await?;
        }
    }

    /// Returns when the other servers have removed this one, or when the maintenance of its etcd failed.
    pub async fn removed(&self) -> anyhow::Error {
        let mut state = self.process.state.clone();
        let maintained = async {
            while !self.task.is_finished() {
                tokio::time::sleep(TASK_POLL).await;
            }
        };
        tokio::select! {
            // The sender lives as long as the process.
            _ = state.wait_for(|state| *state == State::Removed) => anyhow::anyhow!("{}", removed_message(&self.files)),
            () = maintained => anyhow::anyhow!("the maintenance of this server's etcd failed"),
        }
    }

    /// Stops the member.
    pub async fn stop(self) {
        self.task.abort();
        let stopped = self.task.await;
        drop(stopped);
        let process = self.process;
        let stopped = tokio::task::spawn_blocking(move || match Arc::try_unwrap(process) {
            Ok(mut process) => process.stop(),
            Err(_) => tracing::error!("etcd is still in use"),
        });
        if let Err(error) = stopped.await {
            tracing::error!(%error, "cannot stop etcd");
        }
    }
}

/// Whether a server with this data directory keeps its objects in an etcd that it runs.
pub fn has_member(data: &Path) -> anyhow::Result<bool> {
    Ok(MemberFiles::of(data).load()?.is_some())
}

/// Connects to the etcd of the server on this host, if it runs a member.
pub async fn connect_store(data: &Path) -> anyhow::Result<Option<Etcd>> {
    let files = MemberFiles::of(data);
    let Some(member) = files.load()? else { return Ok(None) };
    let tls = files.credentials().tls().context("cannot read etcd's certificates")?;
    let connected = Etcd::connect(&initial_endpoints(&member), Some(tls), EtcdOptions::default()).await;
    connected.map(Some).context("cannot read the store in etcd")
}

fn removed_message(files: &MemberFiles) -> String {
    format!(
        "this server was removed from its cluster; to join again, delete {} and use a new token",
        files.directory().display()
    )
}

/// The endpoints of the members that are known before any of them was asked.
fn initial_endpoints(member: &Member) -> Vec<String> {
    let others = member.initial_cluster.split(',').filter_map(|pair| {
        let (name, url) = pair.split_once('=')?;
        let uri: http::Uri = url.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        (name != member.name).then_some(client_url(host.parse().ok()?))
    });
    std::iter::once(local_url()).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_members_are_known_from_the_start() {
        let all = "one=https://10.0.0.1:2380,two=https://10.0.0.2:2380,three=https://[fd00::3]:2380";
        let member = Member::joining("two", "10.0.0.2".parse().unwrap(), all.to_owned());
        let expected = ["https://127.0.0.1:2379", "https://10.0.0.1:2379", "https://[fd00::3]:2379"];
        assert_eq!(initial_endpoints(&member), expected);
    }

    #[test]
    fn the_keys_of_a_cluster_never_make_a_second_one() {
        let member = Member::first("one", "10.0.0.1".parse().unwrap());
        let server = http::Uri::from_static("https://10.0.0.2:6443");
        let (none, init) = (ServersArguments::default(), ServersArguments { cluster_init: true, ..Default::default() });
        let join = ServersArguments { server: Some(server.clone()), ..Default::default() };
        for (existing, flags, has_joined, has_store, expected) in [
            (Some(member.clone()), &join, true, true, FirstStep::Continue(member.clone())),
            (Some(member.clone()), &init, false, true, FirstStep::Continue(member)),
            (None, &init, false, true, FirstStep::Initialize),
            (None, &none, false, true, FirstStep::None),
            (None, &join, false, true, FirstStep::Join(server.clone())),
            // It was killed after it had received the keys, or was removed and its etcd deleted.
            (None, &join, true, true, FirstStep::Join(server.clone())),
            (None, &none, true, true, FirstStep::Refuse),
            (None, &init, true, true, FirstStep::Refuse),
            // The etcd is not Knarr's: the keys are all that it needs.
            (None, &join, false, false, FirstStep::Join(server)),
            (None, &join, true, false, FirstStep::None),
            (None, &none, true, false, FirstStep::None),
        ] {
            assert_eq!(
                first_step(existing, flags, has_joined, has_store),
                expected,
                "{flags:?} {has_joined} {has_store}"
            );
        }
    }
}
