//! The limits of requests in flight where priority and fairness is disabled.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::request::{GROUP_MASTERS, Target, User};

/// Two limits: one for requests that read, one for those that write. Neither exists if it is 0.
pub struct InFlight {
    reads: Option<Arc<Semaphore>>,
    writes: Option<Arc<Semaphore>>,
}

impl InFlight {
    pub fn new(reads: u32, writes: u32) -> InFlight {
        let limit = |limit: u32| (limit > 0).then(|| Arc::new(Semaphore::new(limit as usize)));
        InFlight { reads: limit(reads), writes: limit(writes) }
    }

    /// A permit, if one is needed; an error if there is none left. Administrators always get through.
    pub fn acquire(&self, user: &User, target: &Target) -> Result<Option<OwnedSemaphorePermit>, LimitReached> {
        let limit = if is_mutating(target) { &self.writes } else { &self.reads };
        let Some(limit) = limit else { return Ok(None) };
        match limit.clone().try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) if user.is_in(GROUP_MASTERS) => Ok(None),
            Err(_) => Err(LimitReached),
        }
    }
}

/// The limit of requests in flight is reached.
#[derive(Debug)]
pub struct LimitReached;

/// Whether a request counts as a write.
pub fn is_mutating(target: &Target) -> bool {
    !matches!(target.verb.as_str(), "get" | "list" | "watch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_limited_separately() {
        let limits = InFlight::new(1, 1);
        let (ann, admin) = (User::named("ann", &[]), User::named("admin", &[GROUP_MASTERS]));
        let target = |verb: &str| Target { verb: verb.into(), ..Target::default() };
        let read = limits.acquire(&ann, &target("list")).unwrap();
        assert!(read.is_some());
        assert!(limits.acquire(&ann, &target("get")).is_err());
        assert!(limits.acquire(&admin, &target("get")).unwrap().is_none());
        assert!(limits.acquire(&ann, &target("create")).unwrap().is_some());
        drop(read);
        assert!(limits.acquire(&ann, &target("get")).unwrap().is_some());
        assert!(InFlight::new(0, 0).acquire(&ann, &target("get")).unwrap().is_none());
    }
}
