//! The etcd backend: writes are transactions on a cluster of etcd servers, reads and watches come from the in-memory
//! index, which one watch over all keys of the store keeps up to date (`feed`).
//!
//! A write returns when its own event has arrived, so that reads see it. Writes of others are visible when their event
//! arrives; `sync` queries etcd's revision and waits for it. If none of our keys changed at that revision, no event will
//! come: then a marker key is written, whose event does. (etcd also offers progress notifications for a watch, but before
//! 3.4.25 and 3.5.8 they may overtake events.)

mod administration;
mod bolt;
mod client;
mod creation;
mod feed;
mod import;
mod lease;
mod store;
mod wire;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::clock::{Clock, SystemClock};
use crate::contract::{Entry, Error, Revision};
use crate::index::Index;
pub use administration::{EtcdAdministration, EtcdMember, MemberStatus};
pub(crate) use bolt::{fuzz as fuzz_database, seed as seed_database};
use client::{CALL_TIMEOUT, Client, Reply, describe};
pub use client::{Connection, Dialer};
use feed::{Feed, KeySpace, RANGE};
pub use import::{SkippedRevisions, import, revision_of};
use lease::Leases;
use wire::operation::Request;

const PUT: &str = "/etcdserverpb.KV/Put";
const TRANSACTION: &str = "/etcdserverpb.KV/Txn";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
/// etcd's default limit for the size of a request.
const DEFAULT_MAX_REQUEST_BYTES: usize = 3 << 19;
/// How long to wait for an event that is probably on its way.
const EVENT_DELAY: Duration = Duration::from_millis(50);
/// After this time without an expected event, the watch is resumed at another member.
const LATE: Duration = Duration::from_millis(1500);

/// Brings a value, read under a key, into the form in which it is served.
pub type Decode = Arc<dyn Fn(&str, Vec<u8>) -> Bytes + Send + Sync>;

/// TLS credentials for etcd, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// The CA certificates that may have signed etcd's certificate.
    pub authority: Vec<u8>,
    /// Our client certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Options of a store in etcd.
#[derive(Clone)]
pub struct EtcdOptions {
    /// The prefix of all keys of the store; other keys in the same etcd are ignored.
    pub root: String,
    /// What stands in etcd in place of that prefix, if something else does.
    pub stored_root: Option<String>,
    /// The clock by which leases are shared.
    pub clock: Arc<dyn Clock>,
    /// Converts values that another program wrote; applied to everything that is read.
    pub decode: Option<Decode>,
    /// The current endpoints in order of preference, when members come and go.
    pub endpoints: Option<watch::Receiver<Vec<String>>>,
    /// The current credentials, when they are renewed.
    pub tls: Option<watch::Receiver<Tls>>,
    /// Opens connections to members that are behind a proxy.
    pub dialer: Option<Dialer>,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            root: "/registry/".to_owned(),
            stored_root: None,
            clock: Arc::new(SystemClock),
            decode: None,
            endpoints: None,
            tls: None,
            dialer: None,
        }
    }
}

/// A store in a cluster of etcd servers.
pub struct Etcd {
    client: Arc<Client>,
    index: Arc<Index>,
    key_space: KeySpace,
    leases: Mutex<Leases>,
    clock: Arc<dyn Clock>,
    syncs: Syncs,
    /// The revision of the fence, as far as it is known here; 0 if it was never written.
    fence: tokio::sync::Mutex<Revision>,
    late: Arc<Notify>,
    tasks: Vec<JoinHandle<()>>,
}

/// Lets concurrent callers of `sync` share one query.
#[derive(Default)]
struct Syncs {
    requested: AtomicU64,
    /// The newest request that is complete.
    completed: tokio::sync::Mutex<u64>,
}

/// The outcome of a transaction.
enum Outcome {
    Done(Revision),
    /// The key was not at the expected revision. `retried`: a previous attempt of ours may be the reason.
    Refused {
        current: Option<Arc<Entry>>,
        retried: bool,
    },
}

impl Etcd {
    /// Connects to a cluster and loads its contents. Endpoints are URLs such as `https://10.0.0.1:2379`.
    pub async fn connect(endpoints: &[String], tls: Option<Tls>, options: EtcdOptions) -> Result<Self, Error> {
        let EtcdOptions { root, stored_root, clock, decode, endpoints: changes, tls: renewals, dialer } = options;
        let client = Arc::new(Client::new(endpoints, tls.as_ref(), dialer)?);
        let key_space = KeySpace::new(&root, stored_root.as_deref(), decode);
        let (entries, revision) = feed::load(&client, &key_space).await?;
        tracing::info!(revision, entries = entries.len(), "loaded the store from etcd");
        let index = Arc::new(Index::new(entries, revision, revision));
        let late = Arc::new(Notify::new());
        let feed =
            Feed { client: client.clone(), index: index.clone(), key_space: key_space.clone(), late: late.clone() };
        let mut tasks = vec![tokio::spawn(feed.run())];
        tasks.extend(changes.map(|changes| tokio::spawn(update_endpoints(client.clone(), changes))));
        tasks.extend(renewals.map(|renewals| tokio::spawn(update_credentials(client.clone(), renewals))));
        let (leases, syncs, fence) = Default::default();
        Ok(Self { client, index, key_space, leases, clock, syncs, fence, late, tasks })
    }

    /// Executes `operation` if the key was last changed at `expected`.
    async fn transact(&self, key: &str, expected: Revision, operation: Request) -> Result<Outcome, Status> {
        let read = wire::RangeRequest { key: self.key_space.stored(key), ..Default::default() };
        let request = wire::TransactionRequest {
            compare: vec![comparison(self.key_space.stored(key), expected)],
            success: vec![wire::Operation { request: Some(operation) }],
            failure: vec![wire::Operation { request: Some(Request::Range(read)) }],
        };
        let Reply { body, retried } = self.client.call(TRANSACTION, request).await?;
        self.outcome(body, retried).await
    }

    /// What became of a transaction on one key. `retried`: a previous attempt may have been executed without a reply.
    async fn outcome(&self, reply: wire::TransactionResponse, retried: bool) -> Result<Outcome, Status> {
        let wire::TransactionResponse { header, succeeded, responses } = reply;
        let at = wire::revision(&header);
        if succeeded {
            self.await_event(at).await?;
            return Ok(Outcome::Done(at));
        }
        // A caller that reads again after a refusal must see the cause.
        self.catch_up(at).await?;
        let pair = responses.into_iter().filter_map(|response| response.range).flat_map(|range| range.pairs).next();
        let current = pair.and_then(|pair| self.key_space.entry(pair));
        Ok(Outcome::Refused { current, retried })
    }

    /// Puts a value, with a lease if it has a TTL; a lease that etcd has dropped in the meantime is replaced once.
    async fn put(&self, key: &str, value: &Bytes, expected: Revision, ttl: Option<Duration>) -> Result<Outcome, Error> {
        self.check(key)?;
        let mut renewed = false;
        loop {
            let lease = match ttl {
                Some(ttl) => self.lease(ttl).await.map_err(unavailable)?,
                None => 0,
            };
            let put = wire::PutRequest { key: self.key_space.stored(key), value: value.clone(), lease };
            let done = match expected {
                0 => self.transact_creation(put).await,
                expected => self.transact(key, expected, Request::Put(put)).await,
            };
            match done {
                Err(status) if status.code() == Code::NotFound && lease != 0 && !renewed => {
                    self.leases.lock().remove(lease);
                    renewed = true;
                }
                Err(status) if is_too_large(&status) => {
                    return Err(Error::TooLarge {
                        key: key.into(),
                        bytes: value.len(),
                        max: DEFAULT_MAX_REQUEST_BYTES,
                    });
                }
                outcome => return outcome.map_err(unavailable),
            }
        }
    }

    async fn lease(&self, ttl: Duration) -> Result<i64, Status> {
        let now = self.clock.now();
        if let Some(lease) = self.leases.lock().find(ttl, now) {
            return Ok(lease);
        }
        let request = wire::LeaseGrantRequest { ttl: lease::seconds(ttl) };
        let granted: wire::LeaseGrantResponse = self.client.call(GRANT, request).await?.body;
        self.leases.lock().add(ttl, granted.id, now);
        Ok(granted.id)
    }

    /// Waits for the event of a revision at which one of our keys changed.
    async fn await_event(&self, revision: Revision) -> Result<(), Status> {
        if self.index.reach(revision, LATE).await.is_ok() {
            return Ok(());
        }
        self.late.notify_one();
        let late = |_| Status::unavailable(format!("etcd did not deliver revision {revision} in time"));
        self.index.reach(revision, CALL_TIMEOUT).await.map_err(late)
    }

    /// Waits until the index has everything up to `revision`, at which possibly only keys of others changed.
    async fn catch_up(&self, revision: Revision) -> Result<(), Status> {
        if self.index.reach(revision, EVENT_DELAY).await.is_ok() {
            return Ok(());
        }
        let marker = self.key_space.marker.as_bytes().to_vec();
        let put = wire::PutRequest { key: marker, value: Bytes::from_static(b"1"), lease: 0 };
        match self.client.call::<_, wire::PutResponse>(PUT, put).await {
            Ok(put) => self.await_event(wire::revision(&put.body.header)).await,
            // Reads go on while etcd accepts no marker: the event may just be late.
            Err(status) if is_full(&status) => self.await_event(revision).await,
            Err(status) => Err(status),
        }
    }

    /// etcd's current revision, from a linearizable read.
    async fn newest(&self) -> Result<Revision, Status> {
        let known = self.index.revision();
        let request = wire::RangeRequest { key: self.key_space.marker.as_bytes().to_vec(), ..Default::default() };
        let response: wire::RangeResponse = self.client.call(RANGE, request).await?.body;
        let newest = wire::revision(&response.header);
        if newest < known {
            let text = format!("etcd went back from revision {known} to {newest}: it has been restored from a backup");
            return Err(Status::failed_precondition(text));
        }
        Ok(newest)
    }

    fn check(&self, key: &str) -> Result<(), Error> {
        if key.starts_with(&self.key_space.root) {
            return Ok(());
        }
        Err(Error::Unavailable(format!("the key {key} does not start with {}", self.key_space.root)))
    }

    /// The version written at `revision`: from the index if possible, so that all readers share it.
    fn written(&self, key: &str, value: Bytes, created: Revision, revision: Revision) -> Arc<Entry> {
        let indexed = self.index.version(key, revision);
        indexed.unwrap_or_else(|| Arc::new(Entry::new(key.into(), value, created, revision)))
    }

    /// The version that an earlier attempt of a refused write has written after `before`. Another writer may have replaced it
    /// already: then the write took effect all the same, and the caller must not believe it was refused.
    fn earlier_attempt(&self, key: &str, value: &Bytes, before: Revision) -> Result<Option<Arc<Entry>>, Error> {
        if self.index.floor() > before {
            let unknown = "etcd did not respond in time, and whether it executed the request is not known";
            return Err(Error::Unavailable(unknown.to_owned()));
        }
        Ok(self.index.written_after(key, value, before))
    }
}

fn comparison(key: Vec<u8>, revision: Revision) -> wire::Compare {
    wire::Compare { target: wire::Target::ModRevision as i32, key, mod_revision: Some(revision as i64) }
}

/// Uses the current members until dropped.
async fn update_endpoints(client: Arc<Client>, mut changes: watch::Receiver<Vec<String>>) {
    while changes.changed().await.is_ok() {
        let endpoints = changes.borrow_and_update().clone();
        if let Err(error) = client.set_endpoints(&endpoints) {
            tracing::warn!(%error, "cannot use the new list of etcd members");
        }
    }
}

/// Uses the current credentials until dropped.
async fn update_credentials(client: Arc<Client>, mut renewals: watch::Receiver<Tls>) {
    while renewals.changed().await.is_ok() {
        let tls = renewals.borrow_and_update().clone();
        if let Err(error) = client.set_tls(tls) {
            tracing::warn!(%error, "cannot use the new credentials for etcd");
        }
    }
}

/// etcd itself refuses slightly oversized requests; its transport refuses the others.
fn is_too_large(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument => status.message().contains("request is too large"),
        Code::ResourceExhausted => status.message().contains("larger than max"),
        _ => false,
    }
}

fn is_full(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("database space exceeded")
}

fn unavailable(status: Status) -> Error {
    match is_full(&status) {
        true => Error::SpaceExceeded,
        false => Error::Unavailable(format!("etcd: {}", describe(&status))),
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.index.close();
    }
}

#[cfg(test)]
mod tests;
