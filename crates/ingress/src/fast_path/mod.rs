//! The fast path for simple requests: forwards HTTP/1.1 between client and pod as bytes, parsing only what routing needs.
//!
//! A simple request fits into memory and needs nothing special. At the first one that is not simple (HTTP/2, upgrades, long
//! or chunked bodies, anything unusual) the connection is handed over to hyper, with all bytes that were read but not
//! served. Responses may have any form.
//!
//! `request` and `response` parse and rewrite heads, `chunks` finds the end of a chunked body (all pure); `deadline` is a
//! cheap timer; this file moves the bytes.

mod body_progress;
mod chunks;
mod deadline;
mod field;
pub mod fuzzing;
mod request;
mod response;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::Timeouts;
use crate::backends::{Backend, Pod};
use crate::forwarded::Origin;
use crate::metrics;
use crate::proxy::{ATTEMPTS, Problem, Proxy, without_port};
use crate::raw_connection::{RawConnection, read_some};
use crate::routes;
use body_progress::BodyProgress;
use deadline::Deadline;
use request::{Read, SimpleRequest};
use response::Body;

/// Maximum size of a request with its body, and of a response's head.
const MAX_REQUEST: usize = 64 * 1024;
/// Maximum buffer size that an idle connection keeps.
const MAX_IDLE_BUFFER: usize = 4096;
/// Bytes of a response that are read at a time.
const PIECE: usize = 32 * 1024;

/// A connection that the fast path hands over, with the bytes read so far.
pub struct Handover<S> {
    pub stream: S,
    pub read: Vec<u8>,
}

/// Serves a client until it closes, or until a request is not simple.
pub async fn serve<S>(stream: S, proxy: &Proxy, origin: &Origin) -> Option<Handover<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut client = Client::new(stream, proxy.timeouts);
    loop {
        client.deadline.set(proxy.timeouts.idle);
        let plain = match client.next_request(origin).await {
            Next::SimpleRequest(plain) => plain,
            Next::NotSimple => return Some(Handover { stream: client.stream, read: client.read }),
            Next::Gone => return None,
            Next::Ambiguous => {
                client.refuse_ambiguous().await;
                return None;
            }
        };
        let started = Instant::now();
        let in_flight = metrics::request_started();
        let (status, goes_on) = match client.forward(&plain, proxy).await {
            Ok(done) => done,
            Err(Failed::Problem(problem)) => (problem.status().as_u16(), client.refuse(problem, &plain).await),
            Err(Failed::Client) => (499, false),
            Err(Failed::NotSimple) => return Some(Handover { stream: client.stream, read: client.read }),
        };
        drop(in_flight);
        metrics::record_response(status, started.elapsed());
        if !goes_on || !plain.keeps_alive {
            // A plain connection is closed by drop; TLS needs a close notification.
            if origin.is_secure() {
                let _ = client.stream.shutdown().await;
            }
            return None;
        }
        client.remove_request(plain.length);
    }
}

struct Client<S> {
    stream: S,
    /// Bytes from the client that are not served yet.
    read: Vec<u8>,
    /// The request as sent to the pod.
    request: Vec<u8>,
    /// Bytes to send to the client next.
    out: Vec<u8>,
    deadline: Deadline,
    timeouts: Timeouts,
}

enum Next {
    SimpleRequest(SimpleRequest),
    NotSimple,
    Gone,
    Ambiguous,
}

/// Why a client does not get a pod's response.
enum Failed {
    Problem(Problem),
    /// The client is gone, or the response broke off.
    Client,
    /// The pod's response is not valid HTTP.
    NotSimple,
}

impl<S> Client<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn new(stream: S, timeouts: Timeouts) -> Self {
        let deadline = Deadline::new(timeouts.idle);
        Client { stream, read: Vec::new(), request: Vec::new(), out: Vec::new(), deadline, timeouts }
    }

    /// Reads a whole request, and writes it to `request`.
    async fn next_request(&mut self, origin: &Origin) -> Next {
        // Length of what was parsed last, and that of the whole request once its head is known.
        let (mut parsed, mut whole) = (0, 0);
        loop {
            if parsed == 0 && !self.read.is_empty() {
                self.deadline.set(self.timeouts.head);
            }
            if may_be_whole(&self.read, parsed, whole) {
                self.request.clear();
                match request::read(&self.read, origin, &mut self.request) {
                    Read::Whole(plain) => return Next::SimpleRequest(plain),
                    Read::NotSimple => return Next::NotSimple,
                    Read::Ambiguous => return Next::Ambiguous,
                    Read::Partial if self.read.len() >= MAX_REQUEST => return Next::NotSimple,
                    Read::PartialBody(length) => whole = length,
                    Read::Partial => {}
                }
                parsed = self.read.len();
            }
            let came = tokio::select! {
                biased;
                came = read_some(&mut self.stream, &mut self.read) => came,
                () = self.deadline.passed() => return Next::Gone,
            };
            if !matches!(came, Ok(1..)) {
                return Next::Gone;
            }
        }
    }

    /// Sends the request to one pod after another until one responds, and forwards the response. Returns the status code
    /// and whether the connection stays open.
    async fn forward(&mut self, plain: &SimpleRequest, proxy: &Proxy) -> Result<(u16, bool), Failed> {
        let backend = self.backend(plain, proxy)?;
        let mut pod = backend.next().ok_or(Failed::Problem(Problem::NoPods))?;
        if pod.speaks_http2 {
            return Err(Failed::NotSimple);
        }
        self.deadline.set(proxy.timeouts.response);
        for attempt in 1..=ATTEMPTS {
            let attempted = self.attempt(&pod, plain, attempt > 1).await;
            let (error, may_be_repeated) = match attempted {
                Ok((wire, response)) => return self.pass(pod, wire, &response).await,
                Err(Attempt::Failed(failed)) => return Err(failed),
                Err(Attempt::Unreachable { error, was_sent }) => (error, !was_sent || plain.is_safe),
            };
            tracing::debug!(pod = %pod.address, error, attempt, "a pod did not respond");
            if !may_be_repeated {
                return Err(Failed::Problem(Problem::Unreachable));
            }
            metrics::retried();
            pod = backend.other_than(&pod).ok_or(Failed::Problem(Problem::NoPods))?;
        }
        Err(Failed::Problem(Problem::Unreachable))
    }

    fn backend(&self, plain: &SimpleRequest, proxy: &Proxy) -> Result<Arc<Backend>, Failed> {
        let text =
            |range: &std::ops::Range<usize>| std::str::from_utf8(self.read.get(range.clone()).unwrap_or_default());
        let host = text(&plain.host).map_err(|_| Failed::Problem(Problem::NoHost))?;
        let path = text(&plain.path).map_err(|_| Failed::Problem(Problem::NoRule))?;
        if routes::climbs(path) {
            return Err(Failed::Problem(Problem::ClimbingPath));
        }
        let routes = proxy.routes.load();
        let found = routes.find(without_port(host), path).ok_or(Failed::Problem(Problem::NoRule))?;
        Ok(Arc::clone(found))
    }

    /// Sends the request to a pod once. The head of the response is written to `out`.
    async fn attempt(
        &mut self,
        pod: &Pod,
        plain: &SimpleRequest,
        fresh: bool,
    ) -> Result<(RawConnection, response::ResponseHead), Attempt> {
        let unsent = |error: String| Attempt::Unreachable { error, was_sent: false };
        let mut wire = pod.wire(fresh).await.map_err(|error| unsent(error.to_string()))?;
        let sent = |error: io::Error| Attempt::Unreachable { error: error.to_string(), was_sent: true };
        wire.send(&self.request).await.map_err(sent)?;
        loop {
            match response::read(wire.read(), plain.is_head, plain.keeps_alive, &mut self.out) {
                response::Read::Whole(response) => {
                    wire.consume(response.head);
                    return Ok((wire, response));
                }
                response::Read::Interim(length) => {
                    wire.consume(length);
                    continue;
                }
                response::Read::Partial if wire.read().len() < MAX_REQUEST => {}
                response::Read::Partial | response::Read::Broken => {
                    return Err(Attempt::Failed(Failed::Problem(Problem::Unreachable)));
                }
            }
            tokio::select! {
                biased;
                came = wire.read_more() => match came {
                    Ok(0) => return Err(sent(io::ErrorKind::UnexpectedEof.into())),
                    Ok(_) => {}
                    Err(error) => return Err(sent(error)),
                },
                came = read_some(&mut self.stream, &mut self.read), if self.read.len() < MAX_REQUEST => {
                    // The client may pipeline more requests meanwhile; if it closes, no response is needed.
                    if !matches!(came, Ok(1..)) {
                        return Err(Attempt::Failed(Failed::Client));
                    }
                }
                () = self.deadline.passed() => return Err(Attempt::Failed(Failed::Problem(Problem::TooSlow))),
            }
        }
    }

    /// Forwards a response whose head is in `out`.
    async fn pass(
        &mut self,
        pod: Arc<Pod>,
        mut wire: RawConnection,
        response: &response::ResponseHead,
    ) -> Result<(u16, bool), Failed> {
        let mut body = BodyProgress::new(&response.body);
        // Body bytes that have arrived are sent together with the head.
        let (count, mut is_over) = body.pass(wire.read()).map_err(|chunks::Broken| Failed::Client)?;
        self.out.extend_from_slice(&wire.read()[..count]);
        wire.consume(count);
        write_out(&mut self.stream, &self.out, self.timeouts.idle).await?;
        while !is_over {
            let is_full = self.read.len() >= MAX_REQUEST;
            tokio::select! {
                biased;
                came = wire.read_piece(PIECE) => match came {
                    Ok(0) if response.body == Body::UntilClose => break,
                    Ok(1..) => {}
                    _ => return Err(Failed::Client),
                },
                // A pod may be silent for hours; only the client's end says that nobody waits any more.
                came = read_some(&mut self.stream, &mut self.read), if !is_full => match came {
                    Ok(1..) => continue,
                    _ => return Err(Failed::Client),
                },
                () = tokio::time::sleep(self.timeouts.idle), if is_full => return Err(Failed::Client),
            }
            let passed = body.pass(wire.read()).map_err(|chunks::Broken| Failed::Client)?;
            write_out(&mut self.stream, &wire.read()[..passed.0], self.timeouts.idle).await?;
            wire.consume(passed.0);
            is_over = passed.1;
        }
        if response.keeps_alive && wire.is_clean() {
            wire.shrink();
            pod.keep_raw(wire);
        }
        Ok((response.status, !matches!(response.body, Body::UntilClose)))
    }

    /// Responds in place of a pod. Returns whether the connection stays open.
    async fn refuse(&mut self, problem: Problem, plain: &SimpleRequest) -> bool {
        self.out.clear();
        response::write_own(problem.status(), problem.text(), plain.is_head, plain.keeps_alive, &mut self.out);
        write_out(&mut self.stream, &self.out, self.timeouts.idle).await.is_ok()
    }

    /// Rejects an ambiguous request. Bytes after it are not read.
    async fn refuse_ambiguous(&mut self) {
        self.out.clear();
        response::write_own(StatusCode::BAD_REQUEST, "the request is ambiguous\n", false, false, &mut self.out);
        // Best effort: the client of such a request may be hostile.
        let _ = write_out(&mut self.stream, &self.out, self.timeouts.idle).await;
        let _ = self.stream.shutdown().await;
    }

    /// Removes a request that has been served. An idle connection keeps little memory.
    fn remove_request(&mut self, length: usize) {
        self.read.drain(..length);
        self.request.clear();
        self.out.clear();
        for buffer in [&mut self.read, &mut self.request, &mut self.out] {
            if buffer.is_empty() && buffer.capacity() > MAX_IDLE_BUFFER {
                *buffer = Vec::new();
            }
        }
    }
}

/// Whether parsing again can have another result: a client that sends byte by byte must not cost a parse for each.
fn may_be_whole(read: &[u8], parsed: usize, whole: usize) -> bool {
    let new = read.get(parsed..).unwrap_or_default();
    match whole {
        0 => parsed == 0 || new.contains(&b'\n') || read.len() >= MAX_REQUEST,
        whole => read.len() >= whole,
    }
}

enum Attempt {
    Failed(Failed),
    Unreachable { error: String, was_sent: bool },
}

/// Sends bytes to a client, which has to read some within each timeout.
async fn write_out<S: AsyncWrite + Unpin>(stream: &mut S, mut bytes: &[u8], timeout: Duration) -> Result<(), Failed> {
    while !bytes.is_empty() {
        match tokio::time::timeout(timeout, stream.write(bytes)).await {
            Ok(Ok(count @ 1..)) => bytes = bytes.get(count..).unwrap_or_default(),
            _ => return Err(Failed::Client),
        }
    }
    // A TLS stream may buffer bytes.
    let flushed = tokio::time::timeout(timeout, stream.flush()).await;
    flushed.ok().and_then(Result::ok).ok_or(Failed::Client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_byte_by_byte_is_parsed_by_the_line() {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nX: {}\r\nContent-Length: 100\r\n\r\n", "x".repeat(1000));
        let text = format!("{head}{}", "y".repeat(100));
        let (mut parsed, mut whole, mut count) = (0, 0, 0);
        let origin = Origin::new([10, 0, 0, 1].into(), false, 80);
        for length in 1..=text.len() {
            let read = &text.as_bytes()[..length];
            if may_be_whole(read, parsed, whole) {
                count += 1;
                parsed = length;
                match request::read(read, &origin, &mut Vec::new()) {
                    Read::PartialBody(all) => whole = all,
                    Read::Partial => {}
                    Read::Whole(request) => assert_eq!((request.length, length), (text.len(), text.len())),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(count, 7, "the first byte, five lines, and the end");
    }
}
