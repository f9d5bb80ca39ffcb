//! Paths that other components of this process handle. Their requests are authenticated and authorized like all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::Response;
use http::request::Parts;

use crate::response::Body;
use crate::route::query::Query;

/// The handler of a path.
#[async_trait]
pub trait Page: Send + Sync {
    async fn serve(&self, head: &Parts, query: &Query, body: &Bytes) -> Response<Body>;
}

/// Handlers by their path, which is one segment.
pub type Pages = BTreeMap<&'static str, Arc<dyn Page>>;
