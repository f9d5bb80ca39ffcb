//! Creations, each executed at most once.
//!
//! A request whose reply is lost may be executed later, when a member that was paused goes on. An update or deletion finds
//! another revision then and does nothing, but a creation would bring back what its retry created and somebody has deleted
//! since. So a creation requires that a key, the fence, is at the revision known here, and writes that key before it retries.

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::client::{ATTEMPT_TIMEOUT, CALL_TIMEOUT, INITIAL_BACKOFF, MAX_BACKOFF, is_transient};
use super::wire::operation::Request;
use super::{Etcd, Outcome, PUT, TRANSACTION, comparison, wire};
use crate::contract::Revision;

impl Etcd {
    /// Puts a value if its key does not exist.
    pub(super) async fn transact_creation(&self, put: wire::PutRequest) -> Result<Outcome, Status> {
        let started = Instant::now();
        let mut backoff = INITIAL_BACKOFF;
        let mut retried = false;
        loop {
            let fence = *self.fence.lock().await;
            let request = self.creation(put.clone(), fence);
            let reply =
                self.client.attempt::<_, wire::TransactionResponse>(TRANSACTION, request, ATTEMPT_TIMEOUT).await;
            let has_time = started.elapsed() + backoff <= CALL_TIMEOUT;
            match reply {
                Ok(reply) => match moved_fence(&reply) {
                    Some(moved) if has_time => self.learn_fence(fence, moved).await,
                    Some(_) => return Err(Status::unavailable("etcd's members fail too often to create an object")),
                    None => return self.outcome(reply, retried).await,
                },
                Err(status) if is_transient(&status) && has_time => {
                    retried = true;
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(MAX_BACKOFF);
                    self.raise_fence(fence).await?;
                }
                Err(status) => return Err(status),
            }
        }
    }

    pub(super) fn creation(&self, put: wire::PutRequest, fence: Revision) -> wire::TransactionRequest {
        let read = |key: &[u8]| {
            let read = wire::RangeRequest { key: key.to_vec(), ..Default::default() };
            wire::Operation { request: Some(Request::Range(read)) }
        };
        let fence_key = self.key_space.fence.as_bytes();
        wire::TransactionRequest {
            compare: vec![comparison(put.key.clone(), 0), comparison(fence_key.to_vec(), fence)],
            failure: vec![read(&put.key), read(fence_key)],
            success: vec![wire::Operation { request: Some(Request::Put(put)) }],
        }
    }

    /// Notes where the fence is, unless that was learnt since from a later reply.
    async fn learn_fence(&self, required: Revision, moved: Revision) {
        let mut known = self.fence.lock().await;
        if *known == required {
            *known = moved;
        }
    }

    /// Makes creations that required `fence` fail from now on, unless another one has done it.
    pub(super) async fn raise_fence(&self, fence: Revision) -> Result<(), Status> {
        let mut known = self.fence.lock().await;
        if *known == fence {
            let key = self.key_space.fence.as_bytes().to_vec();
            let put = wire::PutRequest { key, value: Bytes::from_static(b"1"), lease: 0 };
            let reply = self.client.call::<_, wire::PutResponse>(PUT, put).await?;
            *known = wire::revision(&reply.body.header);
        }
        Ok(())
    }
}

/// The revision of the fence, if that is why a creation was refused.
fn moved_fence(reply: &wire::TransactionResponse) -> Option<Revision> {
    let read = |index: usize| reply.responses.get(index)?.range.as_ref().map(|range| range.pairs.first());
    if reply.succeeded || read(0)?.is_some() {
        return None;
    }
    Some(read(1)?.map_or(0, |pair| pair.mod_revision as Revision))
}
