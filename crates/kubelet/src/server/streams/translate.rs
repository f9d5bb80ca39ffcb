//! Between a client that speaks WebSocket and a runtime that speaks SPDY.
//!
//! Each message of the client begins with the number of its channel; each channel is a stream to the runtime. In the
//! fifth version of the protocol the client can also close a channel, which older WebSocket protocols can't say and which
//! is why commands that read to the end of their input need this translation.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite, split};

use super::spdy;
use super::websocket::{self, Message};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// The streams a command gets.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

impl Wanted {
    /// The channels with the names the runtime knows them by, the one for errors first as it must be.
    fn channels(self) -> Vec<(u8, &'static str)> {
        let all = [
            (ERROR, "error", true),
            (STDIN, "stdin", self.stdin),
            (STDOUT, "stdout", self.stdout),
            (STDERR, "stderr", self.stderr && !self.tty),
            (RESIZE, "resize", self.tty),
        ];
        all.into_iter().filter(|(_, _, wanted)| *wanted).map(|(channel, name, _)| (channel, name)).collect()
    }
}

/// Runs until the command has ended or one side is gone.
pub async fn translate<C, R>(client: C, runtime: R, wanted: Wanted) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let (client_read, mut client) = split(client);
    let (runtime_read, runtime) = split(runtime);
    let mut messages = websocket::Reader::new(client_read);
    let mut frames = spdy::Reader::new(runtime_read);
    let mut runtime = spdy::Writer::new(runtime);
    let mut streams = HashMap::new();
    let mut channels = HashMap::new();
    for (place, (channel, name)) in wanted.channels().into_iter().enumerate() {
        let stream = u32::try_from(place * 2 + 1).map_err(io::Error::other)?;
        runtime.open(stream, &[("streamtype", name)]).await?;
        streams.insert(channel, stream);
        channels.insert(stream, channel);
    }
    // The client learns from an empty message that the command is about to run.
    let first = [STDOUT, STDERR, ERROR].into_iter().find(|channel| streams.contains_key(channel)).unwrap_or(ERROR);
    websocket::send(&mut client, &[&[first]]).await?;
    let mut open: std::collections::HashSet<u8> =
        streams.keys().copied().filter(|channel| matches!(*channel, STDOUT | STDERR | ERROR)).collect();
    loop {
        tokio::select! {
            message = messages.next() => match message? {
                Some(Message::Data(data)) => match data.split_first() {
                    Some((&CLOSE, rest)) => {
                        if let Some(stream) = rest.first().and_then(|channel| streams.get(channel)) {
                            runtime.data(*stream, &[], true).await?;
                        }
                    }
                    Some((channel, rest)) if matches!(*channel, STDIN | RESIZE) => {
                        if let Some(stream) = streams.get(channel) {
                            runtime.data(*stream, rest, false).await?;
                        }
                    }
                    _ => {}
                },
                Some(Message::Ping(payload)) => websocket::send_pong(&mut client, &payload).await?,
                Some(Message::Close) | None => return Ok(()),
            },
            frame = frames.next() => match frame? {
                Some(spdy::Frame::Data { stream, payload, last }) => {
                    let Some(channel) = channels.get(&stream).copied() else { continue };
                    if !payload.is_empty() {
                        websocket::send(&mut client, &[&[channel], &payload]).await?;
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
                // Even numbers are the server's own and want an answer.
                Some(spdy::Frame::Ping(id)) if id % 2 == 0 => runtime.ping(id).await?,
                Some(spdy::Frame::GoAway) | None => {
                    return websocket::send_close(&mut client).await;
                }
                Some(_) => {}
            },
        }
        if open.is_empty() {
            return websocket::send_close(&mut client).await;
        }
    }
}

/// SPDY carried inside WebSocket messages, which is how ports are forwarded through WebSocket: only the wrapping changes.
pub async fn unwrap<C, R>(client: C, runtime: R) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (client_read, mut client) = split(client);
    let (mut runtime_read, mut runtime) = split(runtime);
    let mut messages = websocket::Reader::new(client_read);
    let mut buffer = vec![0; 32 << 10];
    loop {
        tokio::select! {
            message = messages.next() => match message? {
                Some(Message::Data(data)) => {
                    runtime.write_all(&data).await?;
                    runtime.flush().await?;
                }
                Some(Message::Ping(payload)) => websocket::send_pong(&mut client, &payload).await?,
                Some(Message::Close) | None => return Ok(()),
            },
            read = runtime_read.read(&mut buffer) => match read? {
                0 => return websocket::send_close(&mut client).await,
                count => websocket::send(&mut client, &[&buffer[..count]]).await?,
            },
        }
    }
}
