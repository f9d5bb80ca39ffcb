//! A request that passed authentication and authorization: the input of every handler.

use bytes::Bytes;
use http::request::Parts;
use jiff::Timestamp;

use crate::fairness::Permit;
use crate::request::{StageTimes, User};
use crate::request_metrics::InFlightRequest;
use crate::route::query::Query;
use crate::route::target::Routed;

/// A request whose sender is known and allowed to send it, with its whole body.
pub struct AuthorizedRequest<'a> {
    pub parts: &'a mut Parts,
    pub body: Bytes,
    pub user: &'a User,
    pub routed: &'a Routed,
    pub query: &'a Query,
    pub now: Timestamp,
    pub stage_times: StageTimes,
    /// Its metrics.
    pub running: &'a InFlightRequest,
    /// The seats that the request occupies until its response is sent. A watch takes them, and releases them earlier.
    pub permit: &'a mut Option<Permit>,
}
