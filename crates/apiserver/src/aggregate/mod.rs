//! The API aggregation layer: group versions that other servers serve, registered by APIService objects.
//!
//! A request for such a group version is authenticated and authorized here, then proxied with the user in its headers and
//! the front-proxy client certificate. A background controller checks the servers and discovers what they serve.

mod availability;
pub mod discovery;
mod forward;
mod remote;

pub use availability::run_availability_controller;
pub use forward::serve;
pub use remote::Remote;

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::outbound::Identity;

/// The current state of aggregated servers.
#[derive(Default)]
pub struct Aggregation {
    remotes: ArcSwap<Remotes>,
    /// The front-proxy client certificate.
    identity: ArcSwapOption<Identity>,
}

/// All aggregated group versions, and how often they changed.
#[derive(Default)]
pub struct Remotes {
    pub all: Vec<Arc<Remote>>,
    pub generation: u64,
}

impl Aggregation {
    /// Sets the client certificate for new connections.
    pub fn set_identity(&self, identity: Identity) {
        self.identity.store(Some(Arc::new(identity)));
    }

    pub fn remotes(&self) -> arc_swap::Guard<Arc<Remotes>> {
        self.remotes.load()
    }

    /// The aggregated server of a path, if there is one.
    pub fn route(&self, path: &str) -> Option<Arc<Remote>> {
        let remotes = self.remotes.load();
        if remotes.all.is_empty() {
            return None;
        }
        let rest = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/openapi/v3/apis/"))?;
        let mut parts = rest.split('/');
        let (group, version) = (parts.next()?, parts.next()?);
        remotes.all.iter().find(|remote| remote.group == group && remote.version == version).cloned()
    }

    fn set(&self, all: Vec<Arc<Remote>>) {
        let before = self.remotes.load();
        if before.all != all {
            self.remotes.store(Arc::new(Remotes { all, generation: before.generation + 1 }));
        }
    }

    fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.load_full()
    }
}
