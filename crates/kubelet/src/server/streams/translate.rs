//! Translates between a WebSocket client and a SPDY runtime.
//!
//! Each message of the client starts with its channel number; each channel is a stream to the runtime. In version 5 of
//! the protocol the client can also close a channel. Older WebSocket protocols cannot express that, so commands that
//! read to the end of their input need this translation.

use std::collections::{HashMap, HashSet};
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::Mutex;

use super::spdy;
use super::websocket::{self, Message};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// The streams that a client requested for a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandStreams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

impl CommandStreams {
    /// The channels with their stream types; the error channel must come first.
    fn channels(self) -> Vec<(u8, &'static str)> {
        let all = [
            (ERROR, "error", true),
            (STDIN, "stdin", self.stdin),
            (STDOUT, "stdout", self.stdout),
            (STDERR, "stderr", self.stderr && !self.tty),
            (RESIZE, "resize", self.tty),
        ];
        all.into_iter().filter(|(_, _, requested)| *requested).map(|(channel, name, _)| (channel, name)).collect()
    }
}

/// Runs until the command has finished or one side is gone. The two directions are independent: a slow reader on one
/// side must not block the other direction, or both could wait for each other forever.
pub async fn translate<C, R>(client: C, runtime: R, requested: CommandStreams) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let (client_read, mut client) = split(client);
    let (runtime_read, runtime) = split(runtime);
    let mut runtime = spdy::Writer::new(runtime);
    let mut streams = HashMap::new();
    for (place, (channel, name)) in requested.channels().into_iter().enumerate() {
        let stream = u32::try_from(place * 2 + 1).map_err(io::Error::other)?;
        if let Err(error) = runtime.open(stream, &[("streamtype", name)]).await {
            // Reading from the runtime fails as well and notifies the client.
            tracing::debug!(%error, "the runtime is gone already");
        }
        streams.insert(channel, stream);
    }
    // An empty message notifies the client that the command is about to run.
    let first = [STDOUT, STDERR, ERROR].into_iter().find(|channel| streams.contains_key(channel)).unwrap_or(ERROR);
    websocket::send(&mut client, &[&[first]]).await?;
    let (client, runtime) = (Mutex::new(client), Mutex::new(runtime));
    let mut messages = websocket::Reader::new(client_read);
    tokio::select! {
        result = from_client(&mut messages, &client, &runtime, &streams) => result,
        result = from_runtime(spdy::Reader::new(runtime_read), &client, &runtime, &streams) => result,
    }?;
    websocket::finish(messages, client.into_inner()).await
}

/// Forwards the client's messages to the runtime's streams.
async fn from_client<C, W, R>(
    messages: &mut websocket::Reader<C>,
    client: &Mutex<W>,
    runtime: &Mutex<spdy::Writer<R>>,
    streams: &HashMap<u8, u32>,
) -> io::Result<()>
where
    C: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    R: AsyncWrite + Unpin,
{
    loop {
        match messages.next().await? {
            Some(Message::Data(data)) => match data.split_first() {
                Some((&CLOSE, rest)) => {
                    if let Some(stream) = rest.first().and_then(|channel| streams.get(channel)) {
                        forward(runtime, *stream, &[], true).await;
                    }
                }
                Some((channel, rest)) if matches!(*channel, STDIN | RESIZE) => {
                    if let Some(stream) = streams.get(channel) {
                        forward(runtime, *stream, rest, false).await;
                    }
                }
                _ => {}
            },
            Some(Message::Ping(payload)) => websocket::send_pong(&mut *client.lock().await, &payload).await?,
            Some(Message::Close) | None => return Ok(()),
        }
    }
}

/// Writes to the runtime. If that fails, the other direction detects the closed connection and notifies the client.
async fn forward<R: AsyncWrite + Unpin>(runtime: &Mutex<spdy::Writer<R>>, stream: u32, payload: &[u8], last: bool) {
    let written = runtime.lock().await.data(stream, payload, last).await;
    if let Err(error) = written {
        tracing::debug!(%error, "cannot write to the runtime's stream");
        std::future::pending().await
    }
}

/// Forwards the runtime's data to the client's channels. Without a final status a client assumes success, so an error
/// is sent if the runtime disconnects before its status.
async fn from_runtime<R, C, W>(
    mut frames: spdy::Reader<R>,
    client: &Mutex<C>,
    runtime: &Mutex<spdy::Writer<W>>,
    streams: &HashMap<u8, u32>,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    C: AsyncWrite + Unpin,
    W: AsyncWrite + Unpin,
{
    let channels: HashMap<u32, u8> = streams.iter().map(|(channel, stream)| (*stream, *channel)).collect();
    let mut open: HashSet<u8> =
        streams.keys().copied().filter(|channel| matches!(*channel, STDOUT | STDERR | ERROR)).collect();
    let mut status_sent = false;
    while !open.is_empty() {
        let frame = frames.next().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the runtime closed a stream");
            None
        });
        match frame {
            Some(spdy::Frame::Data { stream, payload, last }) => {
                let Some(channel) = channels.get(&stream).copied() else { continue };
                if !payload.is_empty() {
                    status_sent |= channel == ERROR;
                    let internal_error = if channel == ERROR { internal_error(&payload) } else { None };
                    let payload = internal_error.as_ref().map_or(payload.as_ref(), Vec::as_slice);
                    websocket::send(&mut *client.lock().await, &[&[channel], payload]).await?;
                }
                if last {
                    open.remove(&channel);
                }
            }
            Some(spdy::Frame::Reset { stream }) => {
                if let Some(channel) = channels.get(&stream) {
                    open.remove(channel);
                }
            }
            // Pings with even numbers come from the server and need a reply.
            Some(spdy::Frame::Ping(id)) if id % 2 == 0 => runtime.lock().await.ping(id).await?,
            Some(spdy::Frame::GoAway) | None => break,
            Some(_) => {}
        }
    }
    if !status_sent && open.contains(&ERROR) {
        let status = serde_json::json!({
            "metadata": {},
            "status": "Failure",
            "message": "the container runtime went away before the command ended",
            "reason": "InternalError",
            "code": 500,
        });
        websocket::send(&mut *client.lock().await, &[&[ERROR], status.to_string().as_bytes()]).await?;
    }
    Ok(())
}

/// Reports a failure of the runtime, unlike that of a command, as an internal error.
fn internal_error(status: &[u8]) -> Option<Vec<u8>> {
    let mut status: serde_json::Value = serde_json::from_slice(status).ok()?;
    let failed = status["status"] == "Failure" && status["reason"] != "NonZeroExitCode";
    let message = status["message"].as_str().filter(|_| failed)?.to_string();
    status["message"] = format!("Internal error occurred: {message}").into();
    status["reason"] = "InternalError".into();
    status["code"] = 500.into();
    status["details"] = serde_json::json!({ "causes": [{ "message": message }] });
    Some(status.to_string().into_bytes())
}

/// Port-forwarding over WebSocket carries SPDY inside its messages: only the framing changes.
pub async fn unwrap<C, R>(client: C, runtime: R) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let (client_read, client) = split(client);
    let (mut runtime_read, mut runtime) = split(runtime);
    let client = Mutex::new(client);
    let mut messages = websocket::Reader::new(client_read);
    let inward = async {
        loop {
            match messages.next().await? {
                Some(Message::Data(data)) => {
                    runtime.write_all(&data).await?;
                    runtime.flush().await?;
                }
                Some(Message::Ping(payload)) => websocket::send_pong(&mut *client.lock().await, &payload).await?,
                Some(Message::Close) | None => return Ok::<(), io::Error>(()),
            }
        }
    };
    let outward = async {
        let mut buffer = vec![0; 32 << 10];
        loop {
            match runtime_read.read(&mut buffer).await? {
                0 => return Ok(()),
                count => websocket::send(&mut *client.lock().await, &[&buffer[..count]]).await?,
            }
        }
    };
    tokio::select! {
        result = inward => result,
        result = outward => result,
    }?;
    websocket::finish(messages, client.into_inner()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    /// A message as clients send it, with a mask of zeros.
    fn message(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x82, 0xff];
        frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn failures_of_the_runtime_are_ours() {
        let of = |text: &str| internal_error(text.as_bytes()).map(|text| String::from_utf8(text).expect("text"));
        let exit = r#"{"status":"Failure","reason":"NonZeroExitCode","message":"exit code 3"}"#;
        assert_eq!(of(r#"{"status":"Success"}"#), None);
        assert_eq!(of(exit), None);
        assert_eq!(of("no JSON"), None);
        let failed = of(r#"{"status":"Failure","reason":"InternalError","message":"no such file"}"#).expect("an error");
        assert!(failed.contains(r#""message":"Internal error occurred: no such file""#), "{failed}");
    }

    /// Whether the runtime accepts the client's data before it disconnects.
    #[tokio::test]
    async fn a_client_gets_an_error_if_the_runtime_disconnects_early() {
        for accepts in [true, false] {
            let (client, ours) = duplex(1 << 16);
            let (mut runtime, theirs) = duplex(1 << 16);
            let requested = CommandStreams { stdin: true, stdout: true, stderr: false, tty: false };
            if accepts {
                // A byte of output on the third stream, and not a word more.
                runtime.write_all(&[0, 0, 0, 5, 0, 0, 0, 1, b'x']).await.expect("it is accepted");
            }
            let (mut client_read, mut client_write) = split(client);
            client_write.write_all(&message(&[STDIN, b'a'])).await.expect("it is accepted");
            let hold = accepts.then_some(runtime);
            let joined = tokio::spawn(async move { translate(ours, theirs, requested).await });
            let mut received = Vec::new();
            let mut byte = [0];
            if hold.is_some() {
                while !received.ends_with(&[2, STDOUT, b'x']) {
                    client_read.read_exact(&mut byte).await.expect("more");
                    received.push(byte[0]);
                }
            }
            drop(hold);
            let text = |received: &[u8]| String::from_utf8_lossy(received).into_owned();
            while !received.ends_with(&1000u16.to_be_bytes()) {
                client_read.read_exact(&mut byte).await.expect("more");
                received.push(byte[0]);
            }
            assert!(
                text(&received).contains("the container runtime went away before the command ended"),
                "{received:?}"
            );
            drop((client_read, client_write));
            joined.await.expect("it finishes").ok();
        }
    }

    /// Both peers send more than any buffer holds before they read anything.
    #[tokio::test]
    async fn one_way_does_not_wait_for_the_other() {
        let (client, ours) = duplex(1024);
        let (runtime, theirs) = duplex(1024);
        let joined = tokio::spawn(async move { unwrap(ours, theirs).await });
        let (mut client_read, mut client_write) = split(client);
        let (mut runtime_read, mut runtime_write) = split(runtime);
        let size = 200_000;
        // The runtime reads nothing until all its output has been received.
        let said = tokio::spawn(async move {
            runtime_write.write_all(&vec![7; size]).await.expect("it is accepted");
            runtime_write
        });
        let sending = tokio::spawn(async move {
            client_write.write_all(&message(&vec![9; size])).await.expect("it is accepted");
            client_write
        });
        let mut received = 0;
        let mut head = [0; 4];
        while received < size {
            client_read.read_exact(&mut head[..2]).await.expect("a head");
            let length = match head[1] {
                126 => {
                    client_read.read_exact(&mut head[2..]).await.expect("a length");
                    usize::from(u16::from_be_bytes([head[2], head[3]]))
                }
                short => usize::from(short),
            };
            client_read.read_exact(&mut vec![0; length]).await.expect("a payload");
            received += length;
        }
        drop(said.await.expect("all is said"));
        let mut received = vec![0; size];
        runtime_read.read_exact(&mut received).await.expect("what the client sent");
        assert!(received.iter().all(|byte| *byte == 9));
        drop((sending.await, runtime_read, client_read));
        joined.await.expect("it finishes").ok();
    }
}
