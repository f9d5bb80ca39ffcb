//! The body of a request to a pod.

use bytes::Bytes;
use http_body_util::{Either, Full};

use crate::progress::SentBody;

/// The client's body, or an empty one.
pub type Payload = Either<SentBody, Full<Bytes>>;
