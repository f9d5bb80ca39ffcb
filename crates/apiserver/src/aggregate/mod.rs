//! The API aggregation layer: group versions that other servers serve, registered by APIService objects.
//!
//! A request for such a group version is authenticated and authorized here, then proxied with the user in its headers and
//! the front-proxy client certificate. `background::availability` checks the servers and discovers what they serve.

pub mod discovery;
mod forward;
mod remote;

pub use forward::serve;
pub use remote::Remote;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use serde_json::Value;

use crate::object_reader::ObjectReader;
use crate::outbound::Identity;

/// The current state of aggregated servers.
pub struct Aggregation {
    objects: Arc<dyn ObjectReader>,
    tunnels: Arc<knarr_tunnel::Tunnels>,
    remotes: ArcSwap<Remotes>,
    /// The front-proxy client certificate.
    identity: ArcSwapOption<Identity>,
}

/// All aggregated group versions, and how often they changed.
#[derive(Default)]
pub struct Remotes {
    pub all: Vec<Arc<Remote>>,
    /// What they add to the OpenAPI v2 document, by the name of the APIService.
    pub openapi: OpenApiParts,
    pub generation: u64,
}

/// Parts of OpenAPI v2 documents by the name of the APIService.
pub type OpenApiParts = BTreeMap<String, Arc<Value>>;

impl Remotes {
    /// The parts of the OpenAPI v2 document, those of the highest priority first.
    pub fn openapi_parts(&self) -> impl Iterator<Item = &Value> {
        let mut remotes: Vec<&Arc<Remote>> = self.all.iter().collect();
        remotes.sort_by_key(|remote| std::cmp::Reverse((remote.group_priority, remote.version_priority)));
        remotes.into_iter().filter_map(|remote| self.openapi.get(&remote.name).map(|part| &**part))
    }
}

impl Aggregation {
    pub fn new(objects: Arc<dyn ObjectReader>, tunnels: Arc<knarr_tunnel::Tunnels>) -> Aggregation {
        Aggregation { objects, tunnels, remotes: ArcSwap::default(), identity: ArcSwapOption::empty() }
    }

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

    /// Replaces the aggregated servers.
    pub fn set(&self, all: Vec<Arc<Remote>>, openapi: OpenApiParts) {
        let before = self.remotes.load();
        if before.all != all || before.openapi != openapi {
            self.remotes.store(Arc::new(Remotes { all, openapi, generation: before.generation + 1 }));
        }
    }

    fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.load_full()
    }
}
