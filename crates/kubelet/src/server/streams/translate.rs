//! Between a client that speaks WebSocket and a runtime that speaks SPDY.
//!
//! Each message of the client begins with the number of its channel; each channel is a stream to the runtime. In the
//! fifth version of the protocol the client can also close a channel, which older WebSocket protocols can't say and which
//! is why commands that read to the end of their input need this translation.

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

/// Runs until the command has ended or one side is gone. The two directions go on by themselves: a peer that is slow to
/// take what comes its way must not keep the other way from flowing, or both could wait for each other for ever.
pub async fn translate<C, R>(client: C, runtime: R, wanted: Wanted) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let (client_read, mut client) = split(client);
    let (runtime_read, runtime) = split(runtime);
    let mut runtime = spdy::Writer::new(runtime);
    let mut streams = HashMap::new();
    for (place, (channel, name)) in wanted.channels().into_iter().enumerate() {
        let stream = u32::try_from(place * 2 + 1).map_err(io::Error::other)?;
        runtime.open(stream, &[("streamtype", name)]).await?;
        streams.insert(channel, stream);
    }
    // The client learns from an empty message that the command is about to run.
    let first = [STDOUT, STDERR, ERROR].into_iter().find(|channel| streams.contains_key(channel)).unwrap_or(ERROR);
    websocket::send(&mut client, &[&[first]]).await?;
    let (client, runtime) = (Mutex::new(client), Mutex::new(runtime));
    let mut messages = websocket::Reader::new(client_read);
    tokio::select! {
        ended = from_client(&mut messages, &client, &runtime, &streams) => ended,
        ended = from_runtime(spdy::Reader::new(runtime_read), &client, &runtime, &streams) => ended,
    }?;
    websocket::finish(messages, client.into_inner()).await
}

/// What the client sends, to the streams of the runtime.
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
                        runtime.lock().await.data(*stream, &[], true).await?;
                    }
                }
                Some((channel, rest)) if matches!(*channel, STDIN | RESIZE) => {
                    if let Some(stream) = streams.get(channel) {
                        runtime.lock().await.data(*stream, rest, false).await?;
                    }
                }
                _ => {}
            },
            Some(Message::Ping(payload)) => websocket::send_pong(&mut *client.lock().await, &payload).await?,
            Some(Message::Close) | None => return Ok(()),
        }
    }
}

/// What the runtime sends, to the channels of the client.
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
    while !open.is_empty() {
        match frames.next().await? {
            Some(spdy::Frame::Data { stream, payload, last }) => {
                let Some(channel) = channels.get(&stream).copied() else { continue };
                if !payload.is_empty() {
                    websocket::send(&mut *client.lock().await, &[&[channel], &payload]).await?;
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
            Some(spdy::Frame::Ping(id)) if id % 2 == 0 => runtime.lock().await.ping(id).await?,
            Some(spdy::Frame::GoAway) | None => break,
            Some(_) => {}
        }
    }
    Ok(())
}

/// SPDY carried inside WebSocket messages, which is how ports are forwarded through WebSocket: only the wrapping changes.
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
        ended = inward => ended,
        ended = outward => ended,
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

    /// Both peers send more than any buffer holds before they read anything.
    #[tokio::test]
    async fn one_way_does_not_wait_for_the_other() {
        let (client, ours) = duplex(1024);
        let (runtime, theirs) = duplex(1024);
        let joined = tokio::spawn(async move { unwrap(ours, theirs).await });
        let (mut client_read, mut client_write) = split(client);
        let (mut runtime_read, mut runtime_write) = split(runtime);
        let size = 200_000;
        // The runtime takes nothing until all that it says has been heard.
        let said = tokio::spawn(async move {
            runtime_write.write_all(&vec![7; size]).await.expect("it is taken");
            runtime_write
        });
        let asked = tokio::spawn(async move {
            client_write.write_all(&message(&vec![9; size])).await.expect("it is taken");
            client_write
        });
        let mut heard = 0;
        let mut head = [0; 4];
        while heard < size {
            client_read.read_exact(&mut head[..2]).await.expect("a head");
            let length = match head[1] {
                126 => {
                    client_read.read_exact(&mut head[2..]).await.expect("a length");
                    usize::from(u16::from_be_bytes([head[2], head[3]]))
                }
                short => usize::from(short),
            };
            client_read.read_exact(&mut vec![0; length]).await.expect("a payload");
            heard += length;
        }
        drop(said.await.expect("all is said"));
        let mut taken = vec![0; size];
        runtime_read.read_exact(&mut taken).await.expect("what the client sent");
        assert!(taken.iter().all(|byte| *byte == 9));
        drop((asked.await, runtime_read, client_read));
        joined.await.expect("it ends").ok();
    }
}
