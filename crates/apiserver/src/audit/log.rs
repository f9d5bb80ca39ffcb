//! The audit log file, which is rotated when it is full.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

const MEGABYTE: u64 = 1024 * 1024;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DEFAULT_MEGABYTES: u64 = 100;

/// Path and rotation settings of an audit log.
#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    /// `-` is the standard output.
    pub path: PathBuf,
    /// Rotated files are deleted after this many days; zero keeps them.
    pub days: u64,
    /// How many rotated files are kept; zero keeps all.
    pub files: usize,
    /// A file is rotated before it grows larger; zero means 100.
    pub megabytes: u64,
}

/// An open audit log.
pub struct Log {
    settings: LogSettings,
    open: Mutex<Output>,
}

enum Output {
    Stdout,
    File(File, u64),
}

impl Log {
    pub fn open(settings: LogSettings) -> io::Result<Log> {
        let open = if settings.path == Path::new("-") { Output::Stdout } else { open_file(&settings.path)? };
        Ok(Log { settings, open: Mutex::new(open) })
    }

    /// Writes one line. A failed write does not fail the request; it is logged.
    pub fn write(&self, line: &str) {
        let mut open = self.open.lock();
        if let Err(error) = self.try_write(&mut open, line) {
            tracing::error!(%error, "cannot write to the audit log");
        }
    }

    fn try_write(&self, open: &mut Output, line: &str) -> io::Result<()> {
        let Output::File(file, size) = open else {
            return io::stdout().lock().write_all(line.as_bytes());
        };
        let limit = if self.settings.megabytes == 0 { DEFAULT_MEGABYTES } else { self.settings.megabytes };
        if *size > 0 && *size + line.len() as u64 > limit * MEGABYTE {
            self.rotate()?;
            *open = open_file(&self.settings.path)?;
            return self.try_write(open, line);
        }
        file.write_all(line.as_bytes())?;
        *size += line.len() as u64;
        Ok(())
    }

    fn rotate(&self) -> io::Result<()> {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S.%3f").to_string();
        let (stem, end) = self.name_parts();
        std::fs::rename(&self.settings.path, self.settings.path.with_file_name(format!("{stem}-{now}{end}")))?;
        self.remove_old(SystemTime::now())
    }

    fn name_parts(&self) -> (String, String) {
        let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        let end = text(self.settings.path.extension()).map_or(String::new(), |end| format!(".{end}"));
        (text(self.settings.path.file_stem()).unwrap_or_default(), end)
    }

    fn remove_old(&self, now: SystemTime) -> io::Result<()> {
        let (stem, end) = self.name_parts();
        let directory = self.settings.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let mut rotated: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(directory.unwrap_or(Path::new(".")))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("{stem}-")) && name.ends_with(&end) {
                rotated.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        rotated.sort_by(|a, b| b.1.cmp(&a.1));
        for (at, (modified, path)) in rotated.into_iter().enumerate() {
            let too_many = self.settings.files > 0 && at >= self.settings.files;
            let age = now.duration_since(modified).unwrap_or_default();
            if too_many || self.settings.days > 0 && age > DAY * self.settings.days as u32 {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<Output> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok(Output::File(file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_files_are_rotated_and_old_ones_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let log = Log::open(LogSettings { path: path.clone(), files: 1, megabytes: 1, ..Default::default() }).unwrap();
        let line = "x".repeat(600 * 1024);
        for _ in 0..4 {
            log.write(&line);
            // Names of rotated files differ by the millisecond.
            std::thread::sleep(Duration::from_millis(2));
        }
        let count = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(count, 2, "the file and the newest rotated file");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), line.len() as u64);
    }
}
