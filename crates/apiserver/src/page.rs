//! Paths that other components of this process handle. Their requests are authenticated and authorized like all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::Response;
use http::request::Parts;
use knarr_api::status::Status;

use crate::response::Body;
use crate::route::query::Query;

/// The handler of a path. Among the extensions of the head is the [`PageReader`].
#[async_trait]
pub trait Page: Send + Sync {
    async fn serve(&self, head: &Parts, query: &Query, body: &Bytes) -> Response<Body>;
}

/// Handlers by their path, which is one segment.
pub type Pages = BTreeMap<&'static str, Arc<dyn Page>>;

/// What the sender of a request may read.
#[async_trait]
pub trait Reader: Send + Sync {
    /// Whether the sender has the right to the whole page, whatever objects it shows.
    fn reads_all(&self) -> bool;

    /// Refuses an object, such as `pods/default/web` or `nodes/a`, that the sender may not get.
    async fn get(&self, object: &str) -> Result<(), Status>;
}

/// The reader of a page.
#[derive(Clone)]
pub struct PageReader(pub Arc<dyn Reader>);
