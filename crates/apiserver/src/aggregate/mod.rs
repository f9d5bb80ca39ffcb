//! Aggregation: group versions that other servers of the cluster serve, as APIService objects say.
//!
//! A request for such a group version is authenticated and authorized here and then passed on, with the user in its
//! headers and a certificate that proves where it comes from. A loop in the background asks the other servers whether
//! they answer, and what they serve.

mod availability;
pub mod discovery;
mod forward;
mod remote;

pub use availability::follow;
pub use forward::serve;
pub use remote::Remote;

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::outbound::Identity;

/// What is known of other servers right now.
#[derive(Default)]
pub struct Aggregation {
    remotes: ArcSwap<Remotes>,
    /// The certificate that proves to other servers that a request comes from here.
    identity: ArcSwapOption<Identity>,
}

/// All group versions that other servers serve, and how often that changed.
#[derive(Default)]
pub struct Remotes {
    pub all: Vec<Arc<Remote>>,
    pub generation: u64,
}

impl Aggregation {
    /// Shows this certificate to other servers from now on.
    pub fn show(&self, identity: Identity) {
        self.identity.store(Some(Arc::new(identity)));
    }

    pub fn remotes(&self) -> arc_swap::Guard<Arc<Remotes>> {
        self.remotes.load()
    }

    /// Who serves a path, when it is not this server.
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
