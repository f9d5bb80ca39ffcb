//! The store of a server in a cluster of several servers.

use std::sync::Arc;

use knarr_apiserver::persist::foreign;
use knarr_store::Store;

use super::Arguments;
use crate::commands::datastore;
use crate::servers::{self, Managed};

/// The store of a server, if other servers can use it, too.
pub enum SharedStore {
    /// It is in the data directory.
    No,
    /// An etcd that the flags name.
    Given(Arc<dyn Store>),
    /// The etcd of which this server runs a member.
    Managed(Arc<dyn Store>, Managed),
}

impl SharedStore {
    pub async fn open(arguments: &Arguments, member: Option<servers::Member>) -> anyhow::Result<Self> {
        let data = &arguments.apiserver.data_dir;
        if let Some(member) = member {
            let managed = Managed::start(member, data).await?;
            let store = managed.open_store(foreign::decoder()).await?;
            return Ok(SharedStore::Managed(Arc::new(store), managed));
        }
        if arguments.apiserver.datastore.is_empty() {
            return Ok(SharedStore::No);
        }
        let store = datastore::open(&arguments.apiserver).await?;
        servers::check_record(&*store, data).await?;
        Ok(SharedStore::Given(store))
    }

    pub fn store(&self) -> Option<Arc<dyn Store>> {
        match self {
            SharedStore::No => None,
            SharedStore::Given(store) | SharedStore::Managed(store, _) => Some(store.clone()),
        }
    }

    /// Returns when this server was removed from its cluster.
    pub async fn removed(&self) -> anyhow::Error {
        match self {
            SharedStore::Managed(_, managed) => managed.removed().await,
            _ => std::future::pending().await,
        }
    }

    pub async fn close(self) {
        if let SharedStore::Managed(store, managed) = self {
            drop(store);
            managed.stop().await;
        }
    }
}
