//! The members of an etcd cluster: who they are, how they are, adding and removing them.

use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

use super::Tls;
use super::client::{Client, describe};
use super::wire;
use crate::contract::Error;

const MEMBER_LIST: &str = "/etcdserverpb.Cluster/MemberList";
const MEMBER_ADD: &str = "/etcdserverpb.Cluster/MemberAdd";
const MEMBER_PROMOTE: &str = "/etcdserverpb.Cluster/MemberPromote";
const MEMBER_UPDATE: &str = "/etcdserverpb.Cluster/MemberUpdate";
const MEMBER_REMOVE: &str = "/etcdserverpb.Cluster/MemberRemove";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const DEFRAGMENT: &str = "/etcdserverpb.Maintenance/Defragment";
pub(super) const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// A member rewrites its whole database meanwhile: 8 GiB, on a slow disk.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The alarm about a lack of space.
pub(super) const NO_SPACE: i32 = 1;

/// A client for the administration of an etcd cluster.
pub struct EtcdAdministration {
    client: Client,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMember {
    pub id: u64,
    /// Empty until the member has started for the first time.
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
    /// A member that receives everything but has no vote yet.
    pub is_learner: bool,
}

/// What one member says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    pub id: u64,
    pub version: String,
    /// The leader it knows; 0 if none.
    pub leader: u64,
    /// The newest entry of the raft log, and the newest it has applied.
    pub raft_index: u64,
    pub applied_index: u64,
    /// The size of its database file, and how much of that holds data, in bytes.
    pub size: u64,
    pub size_in_use: u64,
    pub is_learner: bool,
    pub errors: Vec<String>,
}

impl EtcdAdministration {
    /// Endpoints are URLs in the order in which they are tried.
    pub fn new(endpoints: &[String], tls: Option<&Tls>) -> Result<Self, Error> {
        Ok(Self { client: Client::new(endpoints, tls, None)? })
    }

    /// Uses other endpoints from now on.
    pub fn set_endpoints(&self, endpoints: &[String]) -> Result<(), Error> {
        self.client.set_endpoints(endpoints)
    }

    /// Uses other credentials from now on.
    pub fn set_tls(&self, tls: Tls) -> Result<(), Error> {
        self.client.set_tls(tls)
    }

    /// The members of the cluster.
    pub async fn members(&self) -> Result<Vec<EtcdMember>, Error> {
        let list: wire::MembersResponse = self.call(MEMBER_LIST, wire::MemberListRequest {}).await?;
        Ok(list.members.into_iter().map(member).collect())
    }

    /// The members as one of them knows them, which need not belong to a quorum.
    pub async fn members_at(&self, endpoint: &str) -> Result<Vec<EtcdMember>, Error> {
        let list = self.client.call_member(endpoint, MEMBER_LIST, wire::MemberListRequest {}, STATUS_TIMEOUT).await;
        let list: wire::MembersResponse = list.map_err(|status| failed(&status))?;
        Ok(list.members.into_iter().map(member).collect())
    }

    /// Adds a member without a vote, which then has to be started. etcd allows one such member at a time.
    pub async fn add_learner(&self, peer_url: &str) -> Result<EtcdMember, Error> {
        let request = wire::MemberAddRequest { peer_urls: vec![peer_url.to_owned()], is_learner: true };
        let added: wire::MemberAddResponse = self.call(MEMBER_ADD, request).await?;
        added.member.map(member).ok_or_else(|| Error::Unavailable("etcd: no member in its response".to_owned()))
    }

    /// Gives a learner its vote. Returns false while it has not caught up with the leader.
    pub async fn promote(&self, id: u64) -> Result<bool, Error> {
        let promoted = self.client.call::<_, wire::MembersResponse>(MEMBER_PROMOTE, wire::MemberRequest { id }).await;
        match promoted {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::FailedPrecondition && status.message().contains("in sync") => {
                Ok(false)
            }
            Err(status) if status.message().contains("can only promote a learner") => Ok(true),
            Err(status) => Err(failed(&status)),
        }
    }

    /// Makes the other members reach a member at another address.
    pub async fn set_peer_url(&self, id: u64, peer_url: &str) -> Result<(), Error> {
        let request = wire::MemberUpdateRequest { id, peer_urls: vec![peer_url.to_owned()] };
        self.call::<_, wire::MembersResponse>(MEMBER_UPDATE, request).await.map(drop)
    }

    /// Removes a member from the cluster.
    pub async fn remove(&self, id: u64) -> Result<(), Error> {
        self.call::<_, wire::MembersResponse>(MEMBER_REMOVE, wire::MemberRequest { id }).await.map(drop)
    }

    /// Asks one member, which need not belong to a quorum.
    pub async fn status(&self, endpoint: &str) -> Result<MemberStatus, Error> {
        let found = self.client.call_member(endpoint, STATUS, wire::StatusRequest {}, STATUS_TIMEOUT).await;
        let found: wire::StatusResponse = found.map_err(|status| failed(&status))?;
        Ok(MemberStatus {
            id: found.header.as_ref().map_or(0, |header| header.member_id),
            version: found.version,
            leader: found.leader,
            raft_index: found.raft_index,
            applied_index: found.applied_index,
            size: found.size.max(0) as u64,
            size_in_use: found.size_in_use.max(0) as u64,
            is_learner: found.is_learner,
            errors: found.errors,
        })
    }

    /// Returns free space of one member's database to the file system. It does not respond meanwhile.
    pub async fn defragment(&self, endpoint: &str) -> Result<(), Error> {
        let request = wire::DefragmentRequest {};
        let done = self.client.call_member(endpoint, DEFRAGMENT, request, DEFRAGMENT_TIMEOUT).await;
        done.map(|_: wire::EmptyResponse| ()).map_err(|status| failed(&status))
    }

    /// The members that ran out of space, for which the cluster refuses writes. They may have been removed since.
    pub async fn space_alarms(&self) -> Result<Vec<u64>, Error> {
        let request = wire::AlarmRequest { action: 0, member_id: 0, alarm: NO_SPACE };
        let found: wire::AlarmResponse = self.call(ALARM, request).await?;
        Ok(found.alarms.iter().filter(|alarm| alarm.alarm == NO_SPACE).map(|alarm| alarm.member_id).collect())
    }

    /// Allows writes again after a member ran out of space.
    pub async fn clear_space_alarm(&self, id: u64) -> Result<(), Error> {
        let request = wire::AlarmRequest { action: 2, member_id: id, alarm: NO_SPACE };
        self.call::<_, wire::AlarmResponse>(ALARM, request).await.map(drop)
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Error>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.client.call(path, request).await.map(|reply| reply.body).map_err(|status| failed(&status))
    }
}

fn member(found: wire::Member) -> EtcdMember {
    let wire::Member { id, name, peer_urls, client_urls, is_learner } = found;
    EtcdMember { id, name, peer_urls, client_urls, is_learner }
}

fn failed(status: &Status) -> Error {
    Error::Unavailable(format!("etcd: {}", describe(status)))
}
