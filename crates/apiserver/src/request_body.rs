//! The body of a request: read whole within limits, or drained.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use knarr_api::status::Status;
use knarr_listen::BoxError;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The body of a request from any origin, unless it is empty.
pub type AnyBody = Option<UnsyncBoxBody<Bytes, BodyError>>;

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BodyError(BoxError);

/// The body of a request, as one type for all.
pub fn any_body<B>(body: B) -> AnyBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    (!body.is_end_stream()).then(|| body.map_err(|error| BodyError(error.into())).boxed_unsync())
}

/// Reads a body whole, up to the limit.
pub async fn read(body: AnyBody, limit: usize) -> Result<Bytes, Status> {
    let Some(body) = body else { return Ok(Bytes::new()) };
    let body = std::pin::pin!(Limited::new(body, limit));
    let Ok(read) = tokio::time::timeout(BODY_TIMEOUT, body.collect()).await else {
        return Err(Status::new(408, "Timeout", "the body of the request did not arrive in time"));
    };
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            let text = format!("Request entity too large: limit is {limit}");
            Err(Status::new(413, "RequestEntityTooLarge", text))
        }
        Err(error) => Err(Status::bad_request(format!("cannot read the body: {error}"))),
    }
}

/// Reads and drops the body of a refused request if it is short and arrives at once: a connection with half a request
/// in it could not be reused. Anybody can send such requests, so that nothing of them is kept.
pub async fn drain(body: AnyBody) {
    const MAX_DRAINED: usize = 256 * 1024;
    const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
    if let Some(body) = body {
        let mut body = std::pin::pin!(Limited::new(body, MAX_DRAINED));
        let dropping = async { while let Some(Ok(_)) = body.frame().await {} };
        // If more remains, the connection is closed.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, dropping).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    static KEPT: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);

    /// A piece of a body that counts how many exist.
    struct Piece([u8; 1024]);

    impl Piece {
        fn new() -> Piece {
            MOST.fetch_max(KEPT.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            Piece([0; 1024])
        }
    }

    impl AsRef<[u8]> for Piece {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Piece {
        fn drop(&mut self) {
            KEPT.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn nothing_of_a_refused_body_is_kept() {
        let pieces = (0..100).map(|_| Ok::<_, std::io::Error>(Frame::data(Bytes::from_owner(Piece::new()))));
        drain(any_body(StreamBody::new(futures::stream::iter(pieces)))).await;
        assert_eq!((KEPT.load(Ordering::SeqCst), MOST.load(Ordering::SeqCst)), (0, 1));
    }
}
