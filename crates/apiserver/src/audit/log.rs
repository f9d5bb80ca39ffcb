//! The audit log file, which is rotated when it is full.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;

use super::backend::{NotStored, Sink};
use super::text_line::text_line;

const MEGABYTE: u64 = 1024 * 1024;
const COMPRESSED: &str = ".gz";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How an event is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line of JSON.
    #[default]
    Json,
    /// A line of text, which leaves out bodies.
    Legacy,
}

impl Format {
    const ALL: [(&str, Format); 2] = [("legacy", Format::Legacy), ("json", Format::Json)];

    /// The format with a name.
    pub fn parse(name: &str) -> Option<Format> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }

    /// The names of all formats, separated by commas.
    pub fn names() -> String {
        Self::ALL.map(|(name, _)| name).join(",")
    }
}

/// Path and rotation settings of an audit log.
#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    /// `-` is the standard output.
    pub path: PathBuf,
    /// Rotated files are deleted after this many days; zero keeps them.
    pub days: u64,
    /// How many rotated files are kept; zero keeps all.
    pub files: usize,
    /// A file is rotated before it grows larger; zero never rotates.
    pub megabytes: u64,
    /// Whether rotated files are compressed.
    pub compress: bool,
    pub format: Format,
}

/// An open audit log.
pub struct Log {
    settings: Arc<LogSettings>,
    open: Mutex<Output>,
    /// One rotation at a time cleans up.
    cleaning: Arc<Mutex<()>>,
}

enum Output {
    Stdout,
    File(Lines<File>),
}

/// Lines of a file.
struct Lines<W> {
    to: W,
    size: u64,
    /// Whether the last line lacks its end: the disk was full, or the server was killed.
    is_cut: bool,
}

impl<W: Write> Lines<W> {
    /// Writes a line, never as the rest of another one.
    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.is_cut {
            self.write_bytes(b"\n")?;
        }
        self.write_bytes(line.as_bytes())
    }

    fn write_bytes(&mut self, mut left: &[u8]) -> io::Result<()> {
        while !left.is_empty() {
            match self.to.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    left = left.get(count..).unwrap_or_default();
                    self.size += count as u64;
                    self.is_cut = !left.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Log {
    pub fn open(settings: LogSettings) -> io::Result<Log> {
        let open = if settings.path == Path::new("-") { Output::Stdout } else { open_file(&settings.path)? };
        Ok(Log { settings: Arc::new(settings), open: Mutex::new(open), cleaning: Arc::default() })
    }

    fn write(&self, line: &str) -> io::Result<()> {
        self.try_write(&mut self.open.lock(), line)
    }

    fn line(&self, event: &Value) -> String {
        match self.settings.format {
            Format::Json => format!("{event}\n"),
            Format::Legacy => format!("{}\n", text_line(event)),
        }
    }

    fn try_write(&self, open: &mut Output, line: &str) -> io::Result<()> {
        let Output::File(file) = open else {
            return io::stdout().lock().write_all(line.as_bytes());
        };
        let limit = self.settings.megabytes.saturating_mul(MEGABYTE);
        if limit > 0 && file.size > 0 && file.size + line.len() as u64 > limit {
            let rotated = self.rotate()?;
            *open = open_file(&self.settings.path)?;
            self.clean_up(rotated);
            return self.try_write(open, line);
        }
        file.write(line)
    }

    /// Renames the file, and returns its new name.
    fn rotate(&self) -> io::Result<PathBuf> {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S.%3f").to_string();
        let (stem, end) = self.settings.name_parts();
        let rotated = self.settings.path.with_file_name(format!("{stem}-{now}{end}"));
        match std::fs::rename(&self.settings.path, &rotated) {
            // Somebody else moved it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(rotated),
            outcome => outcome.map(|()| rotated),
        }
    }

    /// Compresses the rotated file and removes old ones. Requests do not wait for that, and events are written even if it
    /// fails, as it does when the disk is full.
    fn clean_up(&self, rotated: PathBuf) {
        let (settings, cleaning) = (self.settings.clone(), self.cleaning.clone());
        let clean = move || {
            let _one = cleaning.lock();
            if let Err(error) = settings.clean_up(&rotated, SystemTime::now()) {
                tracing::error!(%error, "cannot clean up rotated audit logs");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(clean)),
            Err(_) => clean(),
        }
    }
}

impl LogSettings {
    fn clean_up(&self, rotated: &Path, now: SystemTime) -> io::Result<()> {
        // What cannot be compressed is kept, and counted with the others.
        let compressed = if self.compress && rotated.exists() { compress(rotated) } else { Ok(()) };
        compressed.and(self.remove_old(now))
    }

    fn name_parts(&self) -> (String, String) {
        let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        let end = text(self.path.extension()).map_or(String::new(), |end| format!(".{end}"));
        (text(self.path.file_stem()).unwrap_or_default(), end)
    }

    fn remove_old(&self, now: SystemTime) -> io::Result<()> {
        let (stem, end) = self.name_parts();
        let directory = self.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let mut rotated: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(directory.unwrap_or(Path::new(".")))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_rotated = name.strip_suffix(COMPRESSED).unwrap_or(&name).ends_with(&end);
            if name.starts_with(&format!("{stem}-")) && is_rotated {
                rotated.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        rotated.sort_by(|a, b| b.1.cmp(&a.1));
        let mut outcome = Ok(());
        for (at, (modified, path)) in rotated.into_iter().enumerate() {
            let too_many = self.files > 0 && at >= self.files;
            let age = now.duration_since(modified).unwrap_or_default();
            if too_many || self.days > 0 && age.as_secs() / DAY.as_secs() >= self.days {
                outcome = std::fs::remove_file(path).and(outcome);
            }
        }
        outcome
    }
}

#[async_trait]
impl Sink for Log {
    /// All events are tried, also if one cannot be written.
    async fn send(&self, events: Vec<Value>) -> Result<(), NotStored> {
        let mut outcome = Ok(());
        for event in events {
            if let Err(error) = self.write(&self.line(&event)) {
                tracing::error!(%error, "cannot write to the audit log");
                outcome = Err(NotStored);
            }
        }
        outcome
    }
}

/// Replaces a file by a compressed one.
fn compress(path: &Path) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(COMPRESSED);
    let compressed =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path.with_file_name(name))?;
    let mut encoder = flate2::write::GzEncoder::new(compressed, flate2::Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    std::fs::remove_file(path)
}

fn open_file(path: &Path) -> io::Result<Output> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    // A log that can be written but not read is one, too.
    let is_cut = size > 0 && last_byte(path, size).is_ok_and(|last| last != b'\n');
    Ok(Output::File(Lines { to: file, size, is_cut }))
}

fn last_byte(path: &Path, size: u64) -> io::Result<u8> {
    let mut byte = [0];
    File::open(path)?.read_exact_at(&mut byte, size - 1)?;
    Ok(byte[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn full_files_are_rotated_and_old_ones_deleted() {
        for compress in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("audit.log");
            let settings = LogSettings { path: path.clone(), files: 1, megabytes: 1, compress, ..Default::default() };
            let log = Log::open(settings).unwrap();
            let line = "x".repeat(600 * 1024);
            for _ in 0..4 {
                log.write(&line).unwrap();
                // Names of rotated files differ by the millisecond.
                std::thread::sleep(Duration::from_millis(2));
            }
            let names = names(directory.path());
            assert_eq!(names.len(), 2, "the file and the newest rotated file: {names:?}");
            assert_eq!(names.iter().any(|name| name.ends_with(".log.gz")), compress, "{names:?}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), line.len() as u64);
        }
    }

    /// As when files cannot be compressed because the disk is full.
    #[test]
    fn a_failed_clean_up_loses_no_events() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let settings = LogSettings { path: path.clone(), files: 1, megabytes: 1, ..Default::default() };
        let log = Log::open(settings).unwrap();
        let line = format!("{}\n", "x".repeat(600 * 1024));
        // An old file that cannot be removed like one.
        std::fs::create_dir(directory.path().join("audit-2000.log")).unwrap();
        let written: Vec<_> = (0..4)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(2));
                log.write(&line).map_err(|error| error.to_string())
            })
            .collect();
        assert_eq!(written, vec![Ok(()); 4]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line, "the last one is where it belongs");
    }

    #[test]
    fn without_a_size_nothing_is_rotated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = Log::open(LogSettings { path, files: 1, ..Default::default() }).unwrap();
        let line = "x".repeat(1024 * 1024);
        for _ in 0..3 {
            log.write(&line).unwrap();
        }
        assert_eq!(names(directory.path()), ["audit.log"]);
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error() {
        let log = Log::open(LogSettings { path: "/dev/full".into(), ..Default::default() }).unwrap();
        assert_eq!(log.send(vec![json!({"auditID": "1"})]).await, Err(NotStored));
    }

    /// A disk that has room again after it was full.
    struct Disk {
        written: String,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.written.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_never_the_rest_of_a_line_that_was_cut() {
        for (room, expected) in
            [(0, "{\"b\":2}\n"), (3, "{\"a\n{\"b\":2}\n"), (7, "{\"a\":1}\n{\"b\":2}\n"), (8, "{\"a\":1}\n{\"b\":2}\n")]
        {
            let mut lines = Lines { to: Disk { written: String::new(), room }, size: 0, is_cut: false };
            assert_eq!(lines.write("{\"a\":1}\n").is_ok(), room == 8);
            lines.to.room = 100;
            lines.write("{\"b\":2}\n").unwrap();
            assert_eq!((lines.to.written.as_str(), lines.size), (expected, expected.len() as u64), "{room}");
        }
    }

    #[test]
    fn a_line_that_was_cut_is_ended_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        for (found, expected) in [("a", "a\nb\n"), ("a\n", "a\nb\n"), ("", "b\n")] {
            std::fs::write(&path, found).unwrap();
            Log::open(LogSettings { path: path.clone(), ..Default::default() }).unwrap().write("b\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn events_are_lines_of_json_or_text() {
        for (format, start) in [("json", "{\"auditID\":\"1\"}\n"), ("legacy", " AUDIT: id=\"1\" ")] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("audit.log");
            let format = Format::parse(format).unwrap();
            let log = Log::open(LogSettings { path: path.clone(), format, ..Default::default() }).unwrap();
            log.send(vec![json!({"auditID": "1"})]).await.unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with(start) && text.ends_with('\n'), "{text}");
        }
    }
}
