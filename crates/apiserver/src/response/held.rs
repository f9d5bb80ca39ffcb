//! A large body that is being sent, with the seats of its request. A client that does not read it in time loses it: the
//! seats, and the objects it still holds, are released even if the connection accepts no more bytes.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame};
use knarr_listen::SendBy;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::body::{Body, BodyError};
use crate::fairness::Permit;

/// Smaller bodies are not held: they are in memory anyway, and sent at once.
const MIN_HELD: usize = 128 * 1024;

pub struct Held {
    state: Arc<Mutex<State>>,
    timer: Option<AbortHandle>,
}

enum State {
    Sending { body: Box<Body>, _permit: Option<Permit> },
    TimedOut,
    Done,
}

/// Holds the permit until the body of the response is sent, at most until the deadline. Streams may go on for ever: they
/// hold nothing.
pub fn hold(response: Response<Body>, permit: Option<Permit>, deadline: Option<Instant>) -> Response<Body> {
    let is_stream = matches!(response.body(), Body::Stream(_));
    let is_large = !is_stream && response.body().length().is_none_or(|length| length >= MIN_HELD);
    let Some(deadline) = deadline.filter(|_| is_large) else { return response };
    let mut response = response.map(|body| Body::Held(Held::new(body, permit, deadline)));
    response.extensions_mut().insert(SendBy(deadline));
    response
}

impl Held {
    fn new(body: Body, permit: Option<Permit>, deadline: Instant) -> Held {
        let state = Arc::new(Mutex::new(State::Sending { body: Box::new(body), _permit: permit }));
        let timer = tokio::runtime::Handle::try_current().ok().map(|runtime| {
            let state = state.clone();
            let timer = runtime.spawn(async move {
                tokio::time::sleep_until(deadline).await;
                // Dropped after the lock is released.
                let _lost = std::mem::replace(&mut *state.lock(), State::TimedOut);
            });
            timer.abort_handle()
        });
        Held { state, timer }
    }

    pub fn length(&self) -> Option<usize> {
        match &*self.state.lock() {
            State::Sending { body, .. } => body.length(),
            State::TimedOut | State::Done => None,
        }
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.state.lock();
        let next = match &mut *state {
            State::Sending { body, .. } => std::pin::Pin::new(&mut **body).poll_frame(context),
            State::TimedOut => Poll::Ready(Some(Err(BodyError::Timeout))),
            State::Done => Poll::Ready(None),
        };
        if !matches!(next, Poll::Pending | Poll::Ready(Some(Ok(_)))) {
            *state = State::Done;
        }
        next
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The timer lives on for a moment.
        *self.state.lock() = State::Done;
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::time::Duration;
    use tokio::sync::Semaphore;

    fn large(seats: &Arc<Semaphore>) -> Response<Body> {
        let permit = Permit::InFlight(seats.clone().try_acquire_owned().unwrap());
        let chunks = (0..4).map(|_| Bytes::from(vec![b'a'; MIN_HELD]));
        let response = Response::new(Body::lazy(chunks, 4 * MIN_HELD));
        hold(response, Some(permit), Some(Instant::now() + Duration::from_secs(60)))
    }

    #[tokio::test(start_paused = true)]
    async fn seats_are_held_until_a_large_body_is_sent() {
        let seats = Arc::new(Semaphore::new(1));
        let mut response = large(&seats);
        assert_eq!(response.body().length(), Some(4 * MIN_HELD));
        for _ in 0..4 {
            assert_eq!(seats.available_permits(), 0);
            response.body_mut().frame().await.unwrap().unwrap();
        }
        assert!(response.body_mut().frame().await.is_none());
        assert_eq!(seats.available_permits(), 1);
        let abandoned = large(&seats);
        drop(abandoned);
        assert_eq!(seats.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_loses_its_seats_and_then_its_response() {
        let seats = Arc::new(Semaphore::new(1));
        let mut response = large(&seats);
        response.body_mut().frame().await.unwrap().unwrap();
        // Nothing polls the body while the connection is full.
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(seats.available_permits(), 1);
        assert!(matches!(response.body_mut().frame().await, Some(Err(BodyError::Timeout))));
    }
}
