//! Lines in a file that is put aside when it is full.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

const MEGABYTE: u64 = 1024 * 1024;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DEFAULT_MEGABYTES: u64 = 100;

/// Where lines go, and what becomes of full files.
#[derive(Clone, Debug, Default)]
pub struct LogSettings {
    /// `-` is the standard output.
    pub path: PathBuf,
    /// Files put aside are removed after so many days; zero keeps them.
    pub days: u64,
    /// So many files put aside are kept; zero keeps all.
    pub files: usize,
    /// A file is put aside when it would become larger; zero means 100.
    pub megabytes: u64,
}

pub struct Log {
    settings: LogSettings,
    open: Mutex<Open>,
}

enum Open {
    Output,
    File(File, u64),
}

impl Log {
    pub fn open(settings: LogSettings) -> io::Result<Log> {
        let open = if settings.path == Path::new("-") { Open::Output } else { open_file(&settings.path)? };
        Ok(Log { settings, open: Mutex::new(open) })
    }

    /// Writes one line. That it cannot be written does not stop the request; it is told in the server's own log.
    pub fn write(&self, line: &str) {
        let mut open = self.open.lock();
        if let Err(error) = self.try_write(&mut open, line) {
            tracing::error!(%error, "cannot write to the audit log");
        }
    }

    fn try_write(&self, open: &mut Open, line: &str) -> io::Result<()> {
        let Open::File(file, size) = open else {
            return io::stdout().lock().write_all(line.as_bytes());
        };
        let most = if self.settings.megabytes == 0 { DEFAULT_MEGABYTES } else { self.settings.megabytes };
        if *size > 0 && *size + line.len() as u64 > most * MEGABYTE {
            self.put_aside()?;
            *open = open_file(&self.settings.path)?;
            return self.try_write(open, line);
        }
        file.write_all(line.as_bytes())?;
        *size += line.len() as u64;
        Ok(())
    }

    fn put_aside(&self) -> io::Result<()> {
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
        let folder = self.settings.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut aside: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("{stem}-")) && name.ends_with(&end) {
                aside.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        aside.sort_by(|a, b| b.1.cmp(&a.1));
        for (at, (modified, path)) in aside.into_iter().enumerate() {
            let too_many = self.settings.files > 0 && at >= self.settings.files;
            let age = now.duration_since(modified).unwrap_or_default();
            if too_many || self.settings.days > 0 && age > DAY * self.settings.days as u32 {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<Open> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok(Open::File(file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_files_are_put_aside_and_old_ones_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log = Log::open(LogSettings { path: path.clone(), files: 1, megabytes: 1, ..Default::default() }).unwrap();
        let line = "x".repeat(600 * 1024);
        for _ in 0..4 {
            log.write(&line);
            // Files put aside are told apart by the millisecond.
            std::thread::sleep(Duration::from_millis(2));
        }
        let count = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(count, 2, "the file and the newest put aside");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), line.len() as u64);
    }
}
