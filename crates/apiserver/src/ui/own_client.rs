//! Requests that the server sends to itself as a user, through the same checks as all others.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use knarr_api::status::Status;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::request::{Sender, User};
use crate::state::ApiServer;

/// The maximum number of waiting requests. Each occupies a seat of its priority level while it waits, and the running one needs
/// seats of the same level for the requests that it sends.
const MAX_WAITING: usize = 8;

/// Runs expensive work, which holds a part of the cluster in memory, one request at a time.
pub struct Turns {
    running: Semaphore,
    waiting: Semaphore,
}

impl Turns {
    pub const fn new() -> Turns {
        Turns { running: Semaphore::const_new(1), waiting: Semaphore::const_new(MAX_WAITING) }
    }

    /// Waits until no other request runs; an error if too many requests wait already.
    pub async fn next(&self) -> Result<SemaphorePermit<'_>, Status> {
        if let Ok(turn) = self.running.try_acquire() {
            return Ok(turn);
        }
        let busy = |_| Status::new(429, "TooManyRequests", "others wait for this already: try again later");
        let _waiting = self.waiting.try_acquire().map_err(busy)?;
        self.running.acquire().await.map_err(Status::internal)
    }
}

pub struct Client<'a> {
    server: &'a Arc<ApiServer>,
    sender: Sender,
}

impl<'a> Client<'a> {
    pub fn new(server: &'a Arc<ApiServer>, user: &User) -> Client<'a> {
        Client { server, sender: Sender::Trusted(Arc::new(user.clone())) }
    }

    /// The body of a response to GET.
    pub async fn get(&self, path: &str) -> Result<Bytes, Status> {
        let request = Request::get(path).body(Empty::<Bytes>::new()).map_err(Status::internal)?;
        let response = self.server.handle(request, &self.sender).await;
        let code = response.status();
        let body = response.into_body().collect().await.map_err(Status::internal)?.to_bytes();
        if code.is_success() { Ok(body) } else { Err(Status::new(code.as_u16(), "", String::from_utf8_lossy(&body))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn few_wait_for_their_turn() {
        let turns = Turns::new();
        let first = turns.next().await.unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(turns.next())).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one.as_mut()).is_pending());
        }
        assert_eq!(turns.next().await.err().map(|status| status.code), Some(429));
        drop(first);
        assert!(waiting.remove(0).await.is_ok());
    }
}
