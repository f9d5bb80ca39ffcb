//! Reads container logs: lines of `TIME STREAM FLAG TEXT`, where the flag says whether the line is complete (`F`) or
//! continues in the next one (`P`).

use std::io::SeekFrom;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use nix::sys::inotify::AddWatchFlags;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader};
use tokio::sync::mpsc;

use crate::beneath;
use crate::inotify::Watcher;

/// How often a following reader checks for changes that inotify does not report.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub tail: Option<u64>,
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub limit: Option<u64>,
    /// `stdout` or `stderr` only.
    pub stream: Option<String>,
}

struct Line<'a> {
    time: &'a str,
    stream: &'a str,
    complete: bool,
    text: &'a [u8],
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = std::str::from_utf8(parts.next()?).ok()?;
    let flag = parts.next()?;
    Some(Line { time, stream, complete: flag != b"P", text: parts.next().unwrap_or_default() })
}

/// Sends the log in chunks until its end or, when following, until `is_finished` says that nothing more will come. A
/// slow reader slows this task down; it stops when the reader is gone.
pub async fn send(
    path: PathBuf,
    options: LogOptions,
    sender: mpsc::Sender<Result<Bytes, std::io::Error>>,
    is_finished: impl Fn() -> bool + Send,
) {
    if let Err(error) = send_all(&path, &options, &sender, is_finished).await {
        // The reader may be gone.
        let _ = sender.send(Err(error)).await;
    }
}

async fn send_all(
    path: &Path,
    options: &LogOptions,
    sender: &mpsc::Sender<Result<Bytes, std::io::Error>>,
    is_finished: impl Fn() -> bool + Send,
) -> std::io::Result<()> {
    let mut writer = Writer { options, left: options.limit, at_line_start: true, buffer: Vec::with_capacity(16 << 10) };
    let mut file = open(path).await?;
    let mut watcher = if options.follow { watch(&file) } else { None };
    let start = match options.tail {
        Some(lines) => tail_start(&mut file, lines, options.stream.as_deref()).await?,
        None => 0,
    };
    file.seek(SeekFrom::Start(start)).await?;
    let mut reader = BufReader::with_capacity(32 << 10, file);
    let mut partial = Vec::new();
    // When the log was rotated, and whether the runtime has closed the old file.
    let (mut rotated_at, mut closed) = (None, false);
    loop {
        let finished = is_finished();
        if !send_lines(&mut reader, &mut partial, &mut writer, sender).await? || !options.follow {
            return Ok(());
        }
        if rotated(path, reader.get_ref()).await {
            // The runtime may still write buffered lines to the old file until it closes it.
            let since = *rotated_at.get_or_insert_with(Instant::now);
            if closed || finished || watcher.is_none() || since.elapsed() >= POLL_INTERVAL {
                match open(path).await {
                    Ok(file) => {
                        watcher = watch(&file);
                        reader = BufReader::with_capacity(32 << 10, file);
                        partial.clear();
                        (rotated_at, closed) = (None, false);
                    }
                    // Rotated again: the next file does not exist yet.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
        } else if finished {
            return Ok(());
        }
        tokio::select! {
            () = sender.closed() => return Ok(()),
            is_closed = wait(watcher.as_ref()) => closed |= is_closed,
            // The container's exit changes no file, so it is polled.
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// Sends all lines that are complete; `partial` keeps the start of the last one. Returns whether the reader wants more.
async fn send_lines(
    reader: &mut BufReader<tokio::fs::File>,
    partial: &mut Vec<u8>,
    writer: &mut Writer<'_>,
    sender: &mpsc::Sender<Result<Bytes, std::io::Error>>,
) -> std::io::Result<bool> {
    loop {
        if reader.read_until(b'\n', partial).await? == 0 || partial.last() != Some(&b'\n') {
            return Ok(writer.flush(sender).await);
        }
        partial.pop();
        if !writer.line(partial) {
            writer.flush(sender).await;
            return Ok(false);
        }
        partial.clear();
        if writer.buffer.len() >= 16 << 10 && !writer.flush(sender).await {
            return Ok(false);
        }
    }
}

/// Opens only a regular file: a link could lead to any file of the host, and a FIFO would block.
async fn open(path: &Path) -> std::io::Result<tokio::fs::File> {
    let path = path.to_path_buf();
    let opened =
        tokio::task::spawn_blocking(move || beneath::open_regular(&path)).await.map_err(std::io::Error::other)?;
    opened.map(tokio::fs::File::from_std).map_err(|error| match error {
        beneath::ReadError::Io(error) => error,
        other => std::io::Error::other(other),
    })
}

/// Watches the open file, whatever its current name.
fn watch(file: &tokio::fs::File) -> Option<Watcher> {
    Watcher::new(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))).ok()
}

/// Waits for a change. Returns whether a writer closed the file.
async fn wait(watcher: Option<&Watcher>) -> bool {
    match watcher {
        // A broken watch counts as a change: the reader checks again.
        Some(watcher) => watcher.changed().await.is_ok_and(|what| what.contains(AddWatchFlags::IN_CLOSE_WRITE)),
        None => std::future::pending().await,
    }
}

/// Whether the path now names another file than the open one.
async fn rotated(path: &Path, open: &tokio::fs::File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (tokio::fs::metadata(path).await, open.metadata().await) {
        (Ok(named), Ok(open)) => named.ino() != open.ino(),
        _ => false,
    }
}

struct Writer<'a> {
    options: &'a LogOptions,
    left: Option<u64>,
    at_line_start: bool,
    buffer: Vec<u8>,
}

impl Writer<'_> {
    /// False when the limit is reached.
    fn line(&mut self, raw: &[u8]) -> bool {
        let Some(line) = parse(raw) else { return true };
        if let Some(stream) = &self.options.stream
            && line.stream != stream
        {
            return true;
        }
        if let Some(since) = self.options.since
            && line.time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return true;
        }
        if self.options.timestamps && self.at_line_start {
            self.put(line.time.as_bytes());
            self.put(b" ");
        }
        self.put(line.text);
        self.at_line_start = line.complete;
        if line.complete {
            self.put(b"\n");
        }
        self.left != Some(0)
    }

    fn put(&mut self, bytes: &[u8]) {
        let count = match &mut self.left {
            Some(left) => {
                let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                count
            }
            None => bytes.len(),
        };
        self.buffer.extend_from_slice(&bytes[..count]);
    }

    /// False when the reader is gone.
    async fn flush(&mut self, sender: &mpsc::Sender<Result<Bytes, std::io::Error>>) -> bool {
        if self.buffer.is_empty() {
            return !sender.is_closed();
        }
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        sender.send(Ok(bytes)).await.is_ok()
    }
}

/// The offset of the last `lines` lines. A split line counts once, at its last part.
async fn tail_start(file: &mut tokio::fs::File, lines: u64, stream: Option<&str>) -> std::io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    let end = file.metadata().await?.len();
    if lines == 0 {
        return Ok(end);
    }
    let mut position = end;
    let mut found = 0;
    // The bytes from `position` to the first line break after it that has been examined.
    let mut carry: Vec<u8> = Vec::new();
    while position > 0 {
        let size = BLOCK.min(position);
        position -= size;
        file.seek(SeekFrom::Start(position)).await?;
        let mut block = vec![0; usize::try_from(size).unwrap_or(0)];
        file.read_exact(&mut block).await?;
        block.extend_from_slice(&carry);
        let mut stop = block.len();
        while let Some(line_break) = block[..stop].iter().rposition(|byte| *byte == b'\n') {
            let line = &block[line_break + 1..stop];
            if counts(line, stream) {
                found += 1;
                if found > lines {
                    return Ok(position + stop as u64 + 1);
                }
            }
            stop = line_break;
        }
        carry = block[..stop].to_vec();
    }
    if counts(&carry, stream) && found + 1 > lines {
        return Ok(carry.len() as u64 + 1);
    }
    Ok(0)
}

fn counts(line: &[u8], stream: Option<&str>) -> bool {
    parse(line).is_some_and(|line| line.complete && stream.is_none_or(|stream| line.stream == stream))
}

/// The end of a log, for the termination message of a container.
pub async fn last_lines(path: &str, lines: usize, max_length: usize) -> String {
    let (sender, mut receiver) = mpsc::channel(16);
    let options = LogOptions { tail: Some(lines as u64), ..Default::default() };
    let path = PathBuf::from(path);
    let reading = knarr_supervisor::spawn(async move { send(path, options, sender, || true).await });
    let mut text = Vec::new();
    while let Some(Ok(chunk)) = receiver.recv().await {
        text.extend_from_slice(&chunk);
        // A line may be as long as the log, and the log as large as the disk.
        if text.len() > max_length.saturating_mul(2) {
            text.drain(..text.len() - max_length);
        }
    }
    reading.abort();
    let skip = text.len().saturating_sub(max_length);
    String::from_utf8_lossy(&text[skip..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-01-01T00:00:01.000000000Z stdout F one\n\
                       2026-01-01T00:00:02.000000000Z stderr F two\n\
                       2026-01-01T00:00:03.000000000Z stdout P thr\n\
                       2026-01-01T00:00:03.000000000Z stdout F ee\n\
                       2026-01-01T00:00:04.000000000Z stdout F four\n";

    async fn read(options: LogOptions) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), LOG).expect("written");
        let (sender, mut receiver) = mpsc::channel(16);
        let path = file.path().to_path_buf();
        tokio::spawn(async move { send(path, options, sender, || true).await });
        let mut text = Vec::new();
        while let Some(chunk) = receiver.recv().await {
            text.extend_from_slice(&chunk.expect("a chunk"));
        }
        String::from_utf8(text).expect("text")
    }

    #[tokio::test]
    async fn options_choose_what_is_shown() {
        let since = Some("2026-01-01T00:00:03Z".parse().expect("a moment"));
        let cases = [
            (LogOptions::default(), "one\ntwo\nthree\nfour\n"),
            (LogOptions { tail: Some(2), ..Default::default() }, "three\nfour\n"),
            (LogOptions { tail: Some(0), ..Default::default() }, ""),
            (LogOptions { tail: Some(9), ..Default::default() }, "one\ntwo\nthree\nfour\n"),
            (LogOptions { tail: Some(4), ..Default::default() }, "one\ntwo\nthree\nfour\n"),
            (LogOptions { tail: Some(3), ..Default::default() }, "two\nthree\nfour\n"),
            (LogOptions { since, ..Default::default() }, "three\nfour\n"),
            (LogOptions { limit: Some(5), ..Default::default() }, "one\nt"),
            (LogOptions { stream: Some("stderr".into()), ..Default::default() }, "two\n"),
            (
                LogOptions { timestamps: true, tail: Some(1), ..Default::default() },
                "2026-01-01T00:00:04.000000000Z four\n",
            ),
        ];
        for (options, expected) in cases {
            let title = format!("{options:?}");
            assert_eq!(read(options).await, expected, "{title}");
        }
    }

    #[tokio::test]
    async fn only_regular_files_are_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let (secret, link) = (directory.path().join("secret"), directory.path().join("link"));
        std::fs::write(&secret, LOG).expect("written");
        std::os::unix::fs::symlink(&secret, &link).expect("made");
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert_eq!(last_lines(&secret.to_string_lossy(), 1, 100).await, "four\n");
        for path in [link, fifo] {
            let read = last_lines(path.to_str().expect("text"), 1, 100);
            let text = tokio::time::timeout(Duration::from_secs(5), read).await.expect("no waiting");
            assert_eq!(text, "", "{}", path.display());
        }
    }

    #[tokio::test]
    async fn the_end_of_an_endless_line_is_short() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let part = format!("2026-01-01T00:00:01.000000000Z stdout P {}\n", "x".repeat(1000));
        let last = "2026-01-01T00:00:01.000000000Z stdout F end\n";
        for text in std::iter::repeat_n(part.as_str(), 100_000).chain([last]) {
            std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
        }
        let before = most_memory();
        let text = last_lines(&file.path().to_string_lossy(), 80, 2048).await;
        assert!(text.ends_with("xxxend\n") && text.len() <= 2048, "{} bytes", text.len());
        assert!(most_memory() - before < 32 << 10, "the whole line was kept");
    }

    /// The most memory this process ever had, in KiB.
    fn most_memory() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line");
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
    }

    #[tokio::test]
    async fn following_a_log_misses_nothing_when_it_is_rotated() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};
        let line = |word: &str| format!("2026-01-01T00:00:01.000000000Z stdout F {word}\n");
        let append = |file: &mut std::fs::File, word| std::io::Write::write_all(file, line(word).as_bytes());
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("0.log");
        let mut old = std::fs::File::create(&log).expect("a log");
        append(&mut old, "one").expect("written");
        let (sender, mut receiver) = mpsc::channel(16);
        let finished = Arc::new(AtomicBool::new(false));
        let (path, is_over) = (log.clone(), finished.clone());
        let options = LogOptions { follow: true, ..Default::default() };
        tokio::spawn(async move { send(path, options, sender, move || is_over.load(Ordering::Acquire)).await });
        let mut read = receiver.recv().await.expect("a chunk").expect("read").to_vec();
        std::fs::rename(&log, directory.path().join("0.log.1")).expect("set aside");
        std::fs::write(&log, line("three")).expect("a new log");
        append(&mut old, "two").expect("written");
        drop(old);
        while !read.ends_with(b"three\n") {
            read.extend_from_slice(&receiver.recv().await.expect("a chunk").expect("read"));
        }
        std::fs::rename(&log, directory.path().join("0.log.2")).expect("set aside");
        std::fs::write(&log, line("four")).expect("a new log");
        finished.store(true, Ordering::Release);
        while let Some(chunk) = receiver.recv().await {
            read.extend_from_slice(&chunk.expect("read"));
        }
        assert_eq!(String::from_utf8_lossy(&read), "one\ntwo\nthree\nfour\n");
    }
}
