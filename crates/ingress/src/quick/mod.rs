//! The quick way for plain requests: HTTP/1.1 from client to pod as bytes, with nothing made of them but what routing needs.
//!
//! Plain is a request that is whole in memory and asks for nothing special. At the first one that is not (HTTP/2, upgrades,
//! long or chunked bodies, anything that looks odd) the connection is left to hyper, with all bytes that were read and not
//! served. Answers may be of any form.
//!
//! `request` and `answer` read heads and write them anew, `chunks` finds the end of a chunked body (all pure); `wire` is a
//! connection to a pod; `deadline` is a clock that costs nothing while it does not ring; this file moves the bytes.

mod answer;
mod chunks;
mod deadline;
mod field;
pub mod fuzzing;
mod request;
mod wire;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Timeouts;
use crate::backends::{Backend, Pod};
use crate::forwarded::Origin;
use crate::metrics;
use crate::proxy::{ATTEMPTS, Problem, Proxy, without_port};
use answer::Body;
use chunks::Chunks;
use deadline::Deadline;
use request::{Plain, Read};

pub use wire::Wire;

/// A request with its body must fit; an answer's head, too.
const MOST_HELD: usize = 64 * 1024;
/// Memory that a connection keeps from one request to the next.
const MOST_KEPT: usize = 4096;
/// How much of an answer is moved at a time.
const PIECE: usize = 32 * 1024;

/// A connection that the quick way cannot serve on, and what was read of it.
pub struct Left<S> {
    pub stream: S,
    pub read: Vec<u8>,
}

/// Serves a client until it goes, or until it asks for something that is not plain.
pub async fn serve<S>(stream: S, proxy: &Proxy, origin: &Origin) -> Option<Left<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut client = Client::new(stream, proxy.timeouts);
    loop {
        client.deadline.set(proxy.timeouts.idle);
        let plain = match client.next_request(origin).await {
            Next::Plain(plain) => plain,
            Next::Unplain => return Some(Left { stream: client.stream, read: client.read }),
            Next::Gone => return None,
            Next::Ambiguous => {
                client.refuse_ambiguous().await;
                return None;
            }
        };
        let started = Instant::now();
        let under_way = metrics::begun();
        let (status, goes_on) = match client.forward(&plain, proxy).await {
            Ok(done) => done,
            Err(Failed::Problem(problem)) => (problem.status().as_u16(), client.refuse(problem, &plain).await),
            Err(Failed::Client) => (499, false),
            Err(Failed::Unplain) => return Some(Left { stream: client.stream, read: client.read }),
        };
        drop(under_way);
        metrics::answered(status, started.elapsed());
        if !goes_on || !plain.keeps_alive {
            // Closing says goodbye, but for TLS, where it must be said.
            if origin.is_secure() {
                let _ = client.stream.shutdown().await;
            }
            return None;
        }
        client.take(plain.length);
    }
}

struct Client<S> {
    stream: S,
    /// What came from the client and has not been served.
    read: Vec<u8>,
    /// The request as it goes to the pod.
    request: Vec<u8>,
    /// What goes to the client next.
    out: Vec<u8>,
    deadline: Deadline,
    timeouts: Timeouts,
}

enum Next {
    Plain(Plain),
    Unplain,
    Gone,
    Ambiguous,
}

/// Why a client does not get a pod's answer.
enum Failed {
    Problem(Problem),
    /// Nobody is there to be answered, or the answer broke off.
    Client,
    /// The pod speaks something else.
    Unplain,
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
        let mut has_begun = false;
        loop {
            if !has_begun && !self.read.is_empty() {
                has_begun = true;
                self.deadline.set(self.timeouts.head);
            }
            self.request.clear();
            match request::read(&self.read, origin, &mut self.request) {
                Read::Whole(plain) => return Next::Plain(plain),
                Read::Unplain => return Next::Unplain,
                Read::Ambiguous => return Next::Ambiguous,
                Read::Partial if self.read.len() >= MOST_HELD => return Next::Unplain,
                Read::Partial => {}
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

    /// Sends the request to one pod after another until one answers, and passes the answer on. Tells the answer's
    /// code and whether the connection can go on.
    async fn forward(&mut self, plain: &Plain, proxy: &Proxy) -> Result<(u16, bool), Failed> {
        let backend = self.backend(plain, proxy)?;
        let mut pod = backend.next().ok_or(Failed::Problem(Problem::NoPods))?;
        if pod.speaks_http2 {
            return Err(Failed::Unplain);
        }
        self.deadline.set(proxy.timeouts.answer);
        for attempt in 1..=ATTEMPTS {
            let attempted = self.attempt(&pod, plain, attempt > 1).await;
            let (error, may_be_repeated) = match attempted {
                Ok((wire, answer)) => return self.pass(pod, wire, &answer).await,
                Err(Attempt::Failed(failed)) => return Err(failed),
                Err(Attempt::Unreachable { error, was_sent }) => (error, !was_sent || plain.is_safe),
            };
            tracing::debug!(pod = %pod.address, error, attempt, "a pod did not answer");
            if !may_be_repeated {
                return Err(Failed::Problem(Problem::Unreachable));
            }
            metrics::retried();
            pod = backend.other_than(&pod).ok_or(Failed::Problem(Problem::NoPods))?;
        }
        Err(Failed::Problem(Problem::Unreachable))
    }

    fn backend(&self, plain: &Plain, proxy: &Proxy) -> Result<Arc<Backend>, Failed> {
        let text =
            |range: &std::ops::Range<usize>| std::str::from_utf8(self.read.get(range.clone()).unwrap_or_default());
        let host = text(&plain.host).map_err(|_| Failed::Problem(Problem::NoHost))?;
        let path = text(&plain.path).map_err(|_| Failed::Problem(Problem::NoRule))?;
        let routes = proxy.routes.load();
        let found = routes.find(without_port(host), path).ok_or(Failed::Problem(Problem::NoRule))?;
        Ok(Arc::clone(found))
    }

    /// Asks a pod once. The head of its answer is written to `out`.
    async fn attempt(&mut self, pod: &Pod, plain: &Plain, fresh: bool) -> Result<(Wire, answer::Answer), Attempt> {
        let unsent = |error: String| Attempt::Unreachable { error, was_sent: false };
        let mut wire = pod.wire(fresh).await.map_err(|error| unsent(error.to_string()))?;
        let sent = |error: io::Error| Attempt::Unreachable { error: error.to_string(), was_sent: true };
        wire.send(&self.request).await.map_err(sent)?;
        loop {
            match answer::read(wire.read(), plain.is_head, plain.keeps_alive, &mut self.out) {
                answer::Read::Whole(answer) => {
                    wire.take(answer.head);
                    return Ok((wire, answer));
                }
                answer::Read::Interim(length) => {
                    wire.take(length);
                    continue;
                }
                answer::Read::Partial if wire.read().len() < MOST_HELD => {}
                answer::Read::Partial | answer::Read::Broken => {
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
                came = read_some(&mut self.stream, &mut self.read), if self.read.len() < MOST_HELD => {
                    // More requests may come before the answer to this one; a client that goes needs none.
                    if !matches!(came, Ok(1..)) {
                        return Err(Attempt::Failed(Failed::Client));
                    }
                }
                () = self.deadline.passed() => return Err(Attempt::Failed(Failed::Problem(Problem::TooSlow))),
            }
        }
    }

    /// Passes an answer on whose head is in `out`.
    async fn pass(&mut self, pod: Arc<Pod>, mut wire: Wire, answer: &answer::Answer) -> Result<(u16, bool), Failed> {
        let mut body = Passing::new(&answer.body);
        // What has come of the body goes with the head.
        let (count, mut is_over) = body.pass(wire.read()).map_err(|chunks::Broken| Failed::Client)?;
        self.out.extend_from_slice(&wire.read()[..count]);
        wire.take(count);
        write_out(&mut self.stream, &self.out, self.timeouts.idle).await?;
        while !is_over {
            match wire.read_piece(PIECE).await {
                Ok(0) if answer.body == Body::UntilClose => break,
                Ok(1..) => {}
                _ => return Err(Failed::Client),
            }
            let passed = body.pass(wire.read()).map_err(|chunks::Broken| Failed::Client)?;
            write_out(&mut self.stream, &wire.read()[..passed.0], self.timeouts.idle).await?;
            wire.take(passed.0);
            is_over = passed.1;
        }
        if answer.keeps_alive && wire.is_clean() {
            wire.rest();
            pod.keep_wire(wire);
        }
        Ok((answer.status, !matches!(answer.body, Body::UntilClose)))
    }

    /// Answers in place of a pod. Tells whether the connection can go on.
    async fn refuse(&mut self, problem: Problem, plain: &Plain) -> bool {
        self.out.clear();
        answer::write_own(problem.status(), problem.text(), plain.is_head, plain.keeps_alive, &mut self.out);
        write_out(&mut self.stream, &self.out, self.timeouts.idle).await.is_ok()
    }

    /// Answers a request that cannot be trusted to be one. Nothing behind it is read.
    async fn refuse_ambiguous(&mut self) {
        self.out.clear();
        answer::write_own(
            StatusCode::BAD_REQUEST,
            "the request can be read in two ways\n",
            false,
            false,
            &mut self.out,
        );
        // Who sends such things need not hear of it.
        let _ = write_out(&mut self.stream, &self.out, self.timeouts.idle).await;
        let _ = self.stream.shutdown().await;
    }

    /// Forgets a request that has been served. A client that rests holds little memory.
    fn take(&mut self, length: usize) {
        self.read.drain(..length);
        self.request.clear();
        self.out.clear();
        for buffer in [&mut self.read, &mut self.request, &mut self.out] {
            if buffer.is_empty() && buffer.capacity() > MOST_KEPT {
                *buffer = Vec::new();
            }
        }
    }
}

enum Attempt {
    Failed(Failed),
    Unreachable { error: String, was_sent: bool },
}

/// How far an answer's body has passed.
enum Passing {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Passing {
    fn new(body: &Body) -> Self {
        match body {
            Body::Length(length) => Passing::Length(*length),
            Body::Chunked => Passing::Chunked(Chunks::default()),
            Body::UntilClose => Passing::UntilClose,
        }
    }

    /// How many of these bytes are the body's, and whether it ends with them.
    fn pass(&mut self, read: &[u8]) -> Result<(usize, bool), chunks::Broken> {
        match self {
            Passing::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                *left -= count as u64;
                Ok((count, *left == 0))
            }
            Passing::Chunked(chunks) => chunks.pass(read),
            Passing::UntilClose => Ok((read.len(), false)),
        }
    }
}

/// Sends bytes to a client, which has to take some of them every now and then.
async fn write_out<S: AsyncWrite + Unpin>(stream: &mut S, mut bytes: &[u8], patience: Duration) -> Result<(), Failed> {
    while !bytes.is_empty() {
        match tokio::time::timeout(patience, stream.write(bytes)).await {
            Ok(Ok(count @ 1..)) => bytes = bytes.get(count..).unwrap_or_default(),
            _ => return Err(Failed::Client),
        }
    }
    // Bytes may wait in a stream that encrypts them.
    let flushed = tokio::time::timeout(patience, stream.flush()).await;
    flushed.ok().and_then(Result::ok).ok_or(Failed::Client)
}

/// Reads what is there, by way of memory that all connections of a thread share: one that waits needs none of its own.
async fn read_some<S: AsyncRead + Unpin>(stream: &mut S, into: &mut Vec<u8>) -> io::Result<usize> {
    use std::cell::RefCell;
    use std::pin::Pin;
    use std::task::Poll;
    use tokio::io::ReadBuf;
    thread_local! {
        static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; 16 * 1024]);
    }
    poll_fn(|context| {
        SHARED.with_borrow_mut(|shared| {
            let mut buffer = ReadBuf::new(shared);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) => {
                    into.extend_from_slice(buffer.filled());
                    Poll::Ready(Ok(buffer.filled().len()))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            }
        })
    })
    .await
}

/// Reads into a buffer's own room.
async fn read_piece<S: AsyncRead + Unpin>(stream: &mut S, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
    into.reserve(room);
    stream.read_buf(into).await
}
