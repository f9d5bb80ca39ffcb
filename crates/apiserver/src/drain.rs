//! Graceful shutdown: refuses new requests until the active ones have finished.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Response, Version};
use knarr_listen::CloseConnection;
use tokio::sync::Notify;

use crate::request::Sender;
use crate::response::{self, Body};

const MESSAGE: &str = "The apiserver is shutting down, please try again later.\n";
/// The paths that monitoring reads; they are served until the server exits.
const EXEMPT: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];

/// The active requests of a server, and whether it refuses new ones.
#[derive(Default)]
pub struct Drain {
    refuses: AtomicBool,
    active: AtomicUsize,
    finished: Notify,
}

/// A request in progress, up to the head of its response.
pub struct ActiveRequest<'a>(&'a Drain);

impl Drain {
    /// Counts a request until the result is dropped.
    pub fn start_request(&self) -> ActiveRequest<'_> {
        self.active.fetch_add(1, Ordering::SeqCst);
        ActiveRequest(self)
    }

    /// Refuses new requests from now on. Clients retry, which leads them to another server.
    pub fn start_refusing(&self) {
        self.refuses.store(true, Ordering::SeqCst);
    }

    /// Waits until no request is in progress, at most for `limit`.
    pub async fn finished(&self, limit: Duration) {
        let finished = async {
            loop {
                let changed = self.finished.notified();
                if self.active.load(Ordering::SeqCst) == 0 {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(limit, finished).await.is_err() {
            tracing::warn!("some requests did not finish in time");
        }
    }

    /// The response to a new request while the server drains; `None` if the request is served. Requests of the server itself
    /// always are.
    pub fn refuse(&self, request: &Parts, sender: &Sender) -> Option<Response<Body>> {
        let is_exempt =
            || matches!(sender, Sender::Trusted(_)) || EXEMPT.iter().any(|path| request.uri.path().starts_with(path));
        if !self.refuses.load(Ordering::SeqCst) || is_exempt() {
            return None;
        }
        let mut response = response::text(429, MESSAGE);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
        response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        if request.version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(CloseConnection);
        Some(response)
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.finished.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_requests_are_refused_and_active_ones_awaited() {
        let drain = Drain::default();
        let request = |path: &str| http::Request::get(path.to_owned()).body(()).unwrap().into_parts().0;
        let remote = Sender::Remote(None);
        assert!(drain.refuse(&request("/api"), &remote).is_none());
        let active = drain.start_request();
        drain.start_refusing();
        let refused = drain.refuse(&request("/api"), &remote).unwrap();
        assert_eq!((refused.status().as_u16(), &refused.headers()[RETRY_AFTER]), (429, &HeaderValue::from_static("5")));
        assert!(drain.refuse(&request("/readyz?verbose"), &remote).is_none());
        let started = tokio::time::Instant::now();
        drain.finished(Duration::from_secs(3)).await;
        assert_eq!(started.elapsed(), Duration::from_secs(3));
        drop(active);
        drain.finished(Duration::from_secs(3)).await;
        assert_eq!(started.elapsed(), Duration::from_secs(3));
    }
}
