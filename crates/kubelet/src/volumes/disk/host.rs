//! The host that disks are attached to: its tools, its device files and its mounts. Tests have one of their own.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mount;
use crate::volumes::command::{self, Failure};
use crate::volumes::{VolumeError, in_tree};

/// How often a device that is about to appear is looked for.
const POLL: Duration = Duration::from_millis(200);

/// A program with its arguments. It has no `Debug` on purpose: arguments can be secret.
#[derive(Clone)]
pub struct Command {
    pub program: &'static str,
    pub arguments: Vec<String>,
}

impl Command {
    pub fn new<T: Into<String>>(program: &'static str, arguments: impl IntoIterator<Item = T>) -> Self {
        Self { program, arguments: arguments.into_iter().map(Into::into).collect() }
    }
}

/// How a disk's file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    pub kind: String,
    pub read_only: bool,
    pub options: Vec<String>,
}

pub trait Host: Send + Sync {
    /// The standard output of a program.
    fn run(&self, command: &Command) -> impl Future<Output = Result<String, Failure>> + Send;
    /// Where an absolute path below `/dev` or `/sys` is.
    fn path(&self, absolute: &str) -> PathBuf;
    /// Mounts a device, and formats it if it is empty and may be written.
    fn mount(
        &self,
        device: &str,
        system: &FileSystem,
        target: &Path,
    ) -> impl Future<Output = Result<(), VolumeError>> + Send;
    fn is_mounted(&self, path: &Path) -> bool;
    fn bind(&self, from: &Path, to: &Path) -> Result<(), VolumeError>;
    /// Removes all mounts below a directory.
    fn unbind_below(&self, directory: &Path) -> Result<(), VolumeError>;
}

/// This host.
pub struct RealHost;

impl Host for RealHost {
    async fn run(&self, command: &Command) -> Result<String, Failure> {
        command::run(command.program, &command.arguments).await
    }

    fn path(&self, absolute: &str) -> PathBuf {
        PathBuf::from(absolute)
    }

    async fn mount(&self, device: &str, system: &FileSystem, target: &Path) -> Result<(), VolumeError> {
        in_tree::format_and_mount(device, &system.kind, system.read_only, &system.options, target).await
    }

    fn is_mounted(&self, path: &Path) -> bool {
        mount::is_mount_point(path)
    }

    fn bind(&self, from: &Path, to: &Path) -> Result<(), VolumeError> {
        Ok(mount::bind(from, to)?)
    }

    fn unbind_below(&self, directory: &Path) -> Result<(), VolumeError> {
        Ok(mount::mounts_below(directory).iter().try_for_each(|point| mount::unmount(point))?)
    }
}

/// Writes to a file of the kernel, which exists. The kernel may take long, or never finish.
pub async fn write(host: &impl Host, absolute: &str, text: &'static str) -> Result<(), VolumeError> {
    write_owned(host, absolute, text.to_string()).await
}

pub async fn write_owned(host: &impl Host, absolute: &str, text: String) -> Result<(), VolumeError> {
    let path = host.path(absolute);
    let file = path.clone();
    let work = tokio::task::spawn_blocking(move || {
        let mut file = std::fs::OpenOptions::new().write(true).open(&file)?;
        io::Write::write_all(&mut file, text.as_bytes())
    });
    let written = match tokio::time::timeout(command::TIMEOUT, work).await {
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Ok(Ok(written)) => written,
    };
    written.map_err(VolumeError::file(&path))
}

/// Waits until the function finds something, and returns what it found at last.
pub async fn wait_for<T>(timeout: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let found = find();
        if found.is_some() || tokio::time::Instant::now() >= deadline {
            return found;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The names in a directory, in order. None if it does not exist.
pub fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
