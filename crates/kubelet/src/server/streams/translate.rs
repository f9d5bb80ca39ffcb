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
        if let Err(error) = runtime.open(stream, &[("streamtype", name)]).await {
            // What is read of it tells the client.
            tracing::debug!(%error, "the runtime is gone already");
        }
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
                        hand_on(runtime, *stream, &[], true).await;
                    }
                }
                Some((channel, rest)) if matches!(*channel, STDIN | RESIZE) => {
                    if let Some(stream) = streams.get(channel) {
                        hand_on(runtime, *stream, rest, false).await;
                    }
                }
                _ => {}
            },
            Some(Message::Ping(payload)) => websocket::send_pong(&mut *client.lock().await, &payload).await?,
            Some(Message::Close) | None => return Ok(()),
        }
    }
}

/// A runtime that takes nothing any more has gone, or is about to: the other direction finds out, and tells the client.
async fn hand_on<R: AsyncWrite + Unpin>(runtime: &Mutex<spdy::Writer<R>>, stream: u32, payload: &[u8], last: bool) {
    let handed_on = runtime.lock().await.data(stream, payload, last).await;
    if let Err(error) = handed_on {
        tracing::debug!(%error, "the runtime takes nothing from a stream");
        std::future::pending().await
    }
}

/// What the runtime sends, to the channels of the client. Who hears nothing of how the command ended takes it for a
/// success, so a runtime that goes before it told is told of.
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
    let mut told = false;
    while !open.is_empty() {
        let frame = frames.next().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the runtime broke a stream off");
            None
        });
        match frame {
            Some(spdy::Frame::Data { stream, payload, last }) => {
                let Some(channel) = channels.get(&stream).copied() else { continue };
                if !payload.is_empty() {
                    told |= channel == ERROR;
                    let reworded = if channel == ERROR { reworded(&payload) } else { None };
                    let payload = reworded.as_ref().map_or(payload.as_ref(), Vec::as_slice);
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
            // Even numbers are the server's own and want an answer.
            Some(spdy::Frame::Ping(id)) if id % 2 == 0 => runtime.lock().await.ping(id).await?,
            Some(spdy::Frame::GoAway) | None => break,
            Some(_) => {}
        }
    }
    if !told && open.contains(&ERROR) {
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

/// A runtime that fails, unlike a command that does, is an error of ours, and clients hear it as such.
fn reworded(status: &[u8]) -> Option<Vec<u8>> {
    let mut status: serde_json::Value = serde_json::from_slice(status).ok()?;
    let failed = status["status"] == "Failure" && status["reason"] != "NonZeroExitCode";
    let message = status["message"].as_str().filter(|_| failed)?.to_string();
    status["message"] = format!("Internal error occurred: {message}").into();
    status["reason"] = "InternalError".into();
    status["code"] = 500.into();
    status["details"] = serde_json::json!({ "causes": [{ "message": message }] });
    Some(status.to_string().into_bytes())
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

    #[test]
    fn failures_of_the_runtime_are_ours() {
        let of = |text: &str| reworded(text.as_bytes()).map(|text| String::from_utf8(text).expect("text"));
        let exit = r#"{"status":"Failure","reason":"NonZeroExitCode","message":"exit code 3"}"#;
        assert_eq!(of(r#"{"status":"Success"}"#), None);
        assert_eq!(of(exit), None);
        assert_eq!(of("no JSON"), None);
        let failed = of(r#"{"status":"Failure","reason":"InternalError","message":"no such file"}"#).expect("an error");
        assert!(failed.contains(r#""message":"Internal error occurred: no such file""#), "{failed}");
    }

    /// Whether the runtime takes what comes before it goes, or not even that.
    #[tokio::test]
    async fn a_client_is_told_of_a_runtime_that_goes_before_the_command_ends() {
        for takes in [true, false] {
            let (client, ours) = duplex(1 << 16);
            let (mut runtime, theirs) = duplex(1 << 16);
            let wanted = Wanted { stdin: true, stdout: true, stderr: false, tty: false };
            if takes {
                // A byte of output on the third stream, and not a word more.
                runtime.write_all(&[0, 0, 0, 5, 0, 0, 0, 1, b'x']).await.expect("it is taken");
            }
            let (mut client_read, mut client_write) = split(client);
            client_write.write_all(&message(&[STDIN, b'a'])).await.expect("it is taken");
            let hold = takes.then_some(runtime);
            let joined = tokio::spawn(async move { translate(ours, theirs, wanted).await });
            let mut heard = Vec::new();
            let mut byte = [0];
            if hold.is_some() {
                while !heard.ends_with(&[2, STDOUT, b'x']) {
                    client_read.read_exact(&mut byte).await.expect("more");
                    heard.push(byte[0]);
                }
            }
            drop(hold);
            let text = |heard: &[u8]| String::from_utf8_lossy(heard).into_owned();
            while !heard.ends_with(&1000u16.to_be_bytes()) {
                client_read.read_exact(&mut byte).await.expect("more");
                heard.push(byte[0]);
            }
            assert!(text(&heard).contains("the container runtime went away before the command ended"), "{heard:?}");
            drop((client_read, client_write));
            joined.await.expect("it ends").ok();
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
