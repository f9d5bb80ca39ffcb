//! Paths that other parts of this process answer. A request for one is authenticated and authorized as all are.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Response};

use crate::response::Body;
use crate::route::query::Query;

/// What is behind a path.
#[async_trait]
pub trait Page: Send + Sync {
    async fn serve(&self, method: &Method, query: &Query, body: &Bytes) -> Response<Body>;
}

/// Pages by the first part of their path.
pub type Pages = BTreeMap<&'static str, Arc<dyn Page>>;
