//! Opens files that a pod's author or a container names without leaving the directory they belong to.
//!
//! A container can replace any component of a path inside its volumes by a symbolic link, a FIFO or a device at any
//! time. So the kernel resolves such a path relative to an open directory, and what was opened is checked and used
//! through its descriptor only, never through its path again. Files are opened as mere references first: a device or
//! FIFO is recognised without being opened for reading, which could block or have side effects.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;

/// What symbolic links inside the directory may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Links are resolved; one that leads out of the directory is an error.
    Inside,
    /// Links and absolute paths are resolved as if the directory were the root of the file system.
    Rooted,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a regular file")]
    NotRegular,
    #[error("larger than {0} bytes")]
    TooLarge(u64),
}

/// An open directory that nothing resolved through it leaves.
#[derive(Debug)]
pub struct Directory(OwnedFd);

const REFERENCE: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);
/// The kernel's limit.
const MAX_LINKS: usize = 40;
/// How often a resolution that raced with a rename is repeated before it is done in steps.
const MAX_RACES: usize = 16;

impl Directory {
    /// `path` itself is trusted and may contain links.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = (OFlag::O_DIRECTORY | REFERENCE).bits();
        OpenOptions::new().read(true).custom_flags(flags).open(path).map(|file| Self(file.into()))
    }

    /// An `O_PATH` descriptor of the path's target: it can be mounted, queried for metadata, or reopened.
    pub fn resolve(&self, path: &Path, links: Links) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let inside = match links {
            Links::Inside => ResolveFlag::RESOLVE_BENEATH,
            Links::Rooted => ResolveFlag::RESOLVE_IN_ROOT,
        };
        let how = OpenHow::new().flags(REFERENCE).resolve(inside | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        for _ in 0..MAX_RACES {
            match nix::fcntl::openat2(&self.0, path, how) {
                Ok(opened) => return Ok(opened),
                Err(Errno::EAGAIN) => {}
                // Kernels before 5.6 and some system call filters don't know the call.
                Err(Errno::ENOSYS | Errno::EPERM) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.resolve_in_steps(path, links)
    }

    /// The whole content of a regular file that has at most `limit` bytes.
    pub fn read(&self, path: &Path, links: Links, limit: u64) -> Result<Vec<u8>, ReadError> {
        read_whole(regular(&self.resolve(path, links)?)?, limit)
    }

    /// A reference to the directory of that path. Missing directories are created with the permissions of this
    /// directory, whatever the umask. Links are resolved in the existing components.
    pub fn create_all(&self, path: &Path) -> io::Result<OwnedFd> {
        let permissions = metadata(&self.0)?.permissions();
        let parts: Vec<&OsStr> = path.components().filter_map(normal).collect();
        let prefix = |length: usize| parts[..length].iter().collect::<PathBuf>();
        let mut existing = parts.len();
        let mut current = loop {
            match self.resolve(&prefix(existing), Links::Inside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && existing > 0 => existing -= 1,
                resolved => break resolved?,
            }
        };
        for part in &parts[existing..] {
            current = create_below(&current, part, &permissions)?;
        }
        Ok(current)
    }

    /// Keeps each step open: `..` goes back to the directory that was really passed, wherever it has been moved since.
    fn resolve_in_steps(&self, path: &Path, links: Links) -> io::Result<OwnedFd> {
        let outside = || io::Error::from(Errno::EXDEV);
        let mut passed = vec![self.0.try_clone()?];
        let mut ahead: VecDeque<OsString> = VecDeque::new();
        let mut link_count = 0;
        enter(path, &mut ahead, &mut passed, links)?;
        while let Some(part) = ahead.pop_front() {
            if part == ".." {
                match (passed.len(), links) {
                    (1, Links::Inside) => return Err(outside()),
                    (1, Links::Rooted) => {}
                    _ => drop(passed.pop()),
                }
                continue;
            }
            let here = passed.last().ok_or_else(outside)?;
            let next = nix::fcntl::openat(here, part.as_os_str(), REFERENCE | OFlag::O_NOFOLLOW, Mode::empty())?;
            if metadata(&next)?.is_symlink() {
                link_count += 1;
                if link_count > MAX_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                let target = nix::fcntl::readlinkat(&next, "")?;
                enter(Path::new(&target), &mut ahead, &mut passed, links)?;
            } else {
                passed.push(next);
            }
        }
        passed.pop().ok_or_else(outside)
    }
}

/// Queues the path's components before the remaining ones.
fn enter(path: &Path, ahead: &mut VecDeque<OsString>, passed: &mut Vec<OwnedFd>, links: Links) -> io::Result<()> {
    if path.is_absolute() {
        if links == Links::Inside {
            return Err(Errno::EXDEV.into());
        }
        passed.truncate(1);
    }
    let parts = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    let parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty() && *part != b".").collect();
    for part in parts.into_iter().rev() {
        ahead.push_front(OsStr::from_bytes(part).to_owned());
    }
    Ok(())
}

fn normal(part: Component<'_>) -> Option<&OsStr> {
    if let Component::Normal(name) = part { Some(name) } else { None }
}

/// If the new directory is replaced by a link between the calls, the second one fails.
fn create_below(parent: &OwnedFd, name: &OsStr, permissions: &Permissions) -> io::Result<OwnedFd> {
    let created = match nix::sys::stat::mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(error) => return Err(error.into()),
    };
    let flags = REFERENCE | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY;
    let opened = nix::fcntl::openat(parent, name, flags, Mode::empty())?;
    if created {
        std::fs::set_permissions(link_to(&opened), permissions.clone())?;
    }
    Ok(opened)
}

/// The path of a name below a directory of the node's own, for another process to open. None for a name that could lead
/// out of it. Where a container can write below the directory, open the name with a [`Directory`] instead.
pub fn join(directory: &Path, name: &str) -> Option<PathBuf> {
    let name = Path::new(name);
    let descends = name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    (descends && name.components().next().is_some()).then(|| directory.join(name))
}

/// How messages name a path below a directory. It is not to be opened.
pub fn rendered(directory: &Path, name: &str) -> PathBuf {
    directory.join(name.trim_start_matches('/'))
}

/// The path by which the kernel knows an open descriptor of this process.
pub fn link_to(descriptor: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

pub fn metadata(descriptor: &OwnedFd) -> io::Result<Metadata> {
    File::from(descriptor.try_clone()?).metadata()
}

/// Opens a regular file at a trusted path whose last component a container or the runtime may have created. Rejects
/// links.
pub fn open_regular(path: &Path) -> Result<File, ReadError> {
    let flags = (REFERENCE | OFlag::O_NOFOLLOW).bits();
    let reference = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    regular(&reference.into())
}

/// Opens a regular file at a trusted path, whose links the administrator created.
pub fn open_linked(path: &Path) -> Result<File, ReadError> {
    let reference = OpenOptions::new().read(true).custom_flags(REFERENCE.bits()).open(path)?;
    regular(&reference.into())
}

/// A reference to what a path below `root` leads to, wherever its links lead on the way; an error if that is not below
/// `root`. What the descriptor refers to is checked, so that it does not matter what is replaced meanwhile. For directories
/// whose links are absolute, which a [`Directory`] does not resolve.
pub fn resolve_linked(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let root = root.canonicalize()?;
    let reference = OpenOptions::new().read(true).custom_flags(REFERENCE.bits()).open(root.join(path))?;
    let is_below = std::fs::read_link(link_to(&reference))?.starts_with(&root);
    if is_below { Ok(reference.into()) } else { Err(Errno::EXDEV.into()) }
}

/// The content of a regular file that has at most `limit` bytes.
pub fn read_referenced(reference: &OwnedFd, limit: u64) -> Result<Vec<u8>, ReadError> {
    read_whole(regular(reference)?, limit)
}

/// At most the first `limit` bytes.
pub fn read_head(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(limit).read_to_end(&mut content)?;
    Ok(content)
}

/// At most the last `limit` bytes.
pub fn read_tail(mut file: File, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    read_head(file, limit)
}

/// The content of a file that has at most `limit` bytes.
pub fn read_whole(file: File, limit: u64) -> Result<Vec<u8>, ReadError> {
    let content = read_head(file, limit.saturating_add(1))?;
    if content.len() as u64 > limit { Err(ReadError::TooLarge(limit)) } else { Ok(content) }
}

fn regular(reference: &OwnedFd) -> Result<File, ReadError> {
    if !metadata(reference)?.is_file() {
        return Err(ReadError::NotRegular);
    }
    let flags = (OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits();
    Ok(OpenOptions::new().read(true).custom_flags(flags).open(link_to(reference))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory `v` with a file `own`, a directory `inside`, and links in and out, beside a file `host`.
    fn volume() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("v");
        std::fs::create_dir_all(volume.join("inside")).expect("made");
        std::fs::write(directory.path().join("host"), "host").expect("written");
        std::fs::write(volume.join("own"), "own").expect("written");
        std::fs::write(volume.join("inside/file"), "file").expect("written");
        for (target, name) in [
            ("inside", "in"),
            ("..", "up"),
            ("../host", "out"),
            ("/own", "rooted"),
            ("inside/../own", "around"),
            ("loop", "loop"),
        ] {
            symlink(target, volume.join(name)).expect("made");
        }
        (directory, volume)
    }

    #[test]
    fn both_ways_of_resolving_stay_inside() {
        let (_directory, volume) = volume();
        let directory = Directory::open(&volume).expect("opened");
        // The path, what it shows where links must stay inside, and what where the directory is the root.
        let cases = [
            ("own", Some("own"), Some("own")),
            ("./inside//file", Some("file"), Some("file")),
            ("in/file", Some("file"), Some("file")),
            ("around", Some("own"), Some("own")),
            ("inside/../own", Some("own"), Some("own")),
            ("/own", None, Some("own")),
            ("rooted", None, Some("own")),
            ("../own", None, Some("own")),
            ("up/own", None, Some("own")),
            ("../host", None, None),
            ("out", None, None),
            ("up/host", None, None),
            ("/etc/passwd", None, None),
            ("loop", None, None),
            ("missing", None, None),
        ];
        for (path, inside, rooted) in cases {
            for (links, expected) in [(Links::Inside, inside), (Links::Rooted, rooted)] {
                let path = Path::new(path);
                for resolved in [directory.resolve(path, links), directory.resolve_in_steps(path, links)] {
                    let text = resolved.map_err(ReadError::from).and_then(|found| read_whole(regular(&found)?, 100));
                    assert_eq!(text.ok().as_deref(), expected.map(str::as_bytes), "{} {links:?}", path.display());
                }
            }
        }
    }

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let (parent, volume) = volume();
        let directory = Directory::open(&volume).expect("opened");
        nix::unistd::mkfifo(&volume.join("fifo"), Mode::S_IRWXU).expect("made");
        File::create(volume.join("sparse")).and_then(|file| file.set_len(100 << 30)).expect("made");
        let read = |path: &str| directory.read(Path::new(path), Links::Inside, 3);
        assert!(matches!(read("own"), Ok(content) if content == b"own"));
        assert!(matches!(read("inside/file"), Err(ReadError::TooLarge(3))));
        assert!(matches!(read("sparse"), Err(ReadError::TooLarge(3))));
        assert!(matches!(read("fifo"), Err(ReadError::NotRegular)));
        assert!(matches!(read("inside"), Err(ReadError::NotRegular)));
        assert!(matches!(open_regular(Path::new("/dev/zero")), Err(ReadError::NotRegular)));
        symlink(parent.path().join("host"), parent.path().join("link")).expect("made");
        assert!(open_regular(&parent.path().join("link")).is_err());
        let host = || open_regular(&parent.path().join("host")).expect("opened");
        assert_eq!(read_head(host(), 2).expect("read"), b"ho");
        assert_eq!(read_tail(host(), 2).expect("read"), b"st");
    }
}
