//! Serves the host's log files (`/logs/`).

use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};

use http::{HeaderValue, Response, StatusCode, header};

use super::{Body, full, text};
use crate::beneath::{self, Directory, Links, ReadError};

/// Larger files are refused, as they are read into memory.
const MAX_FILE_SIZE: u64 = 64 << 20;

/// Responds with a file's content or a directory's listing below `root`. Links that lead out of it are not found.
pub async fn respond(root: &Path, parts: &[&str]) -> Response<Body> {
    let (root, relative): (PathBuf, PathBuf) = (root.to_path_buf(), parts.iter().collect());
    let read = tokio::task::spawn_blocking(move || read(&root, &relative)).await;
    match read {
        Ok(Ok(LogContent::File(content))) => plain(content),
        Ok(Ok(LogContent::Directory(page))) => html(page),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Opens a regular file below `root`. Links that lead out of it are an error.
pub fn open(root: &Path, relative: &Path) -> std::io::Result<std::fs::File> {
    let found = Directory::open(root)?.resolve(relative, Links::Inside)?;
    if !beneath::metadata(&found)?.is_file() {
        // A directory may contain the file that is tried next.
        return Err(std::io::ErrorKind::NotFound.into());
    }
    std::fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Checks that a file or directory exists at that path below `root`.
pub fn exists(root: &Path, relative: &Path) -> std::io::Result<()> {
    Directory::open(root)?.resolve(relative, Links::Inside).map(drop)
}

#[derive(Debug, PartialEq)]
enum LogContent {
    File(Vec<u8>),
    Directory(String),
}

fn read(root: &Path, relative: &Path) -> std::io::Result<LogContent> {
    let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(missing());
    }
    // Pods that mount the directory can replace files in it by links at any time.
    let found = match beneath::resolve_linked(root, relative) {
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => return Err(missing()),
        found => found?,
    };
    if beneath::metadata(&found)?.is_dir() {
        return Ok(LogContent::Directory(list(&beneath::link_to(&found))?));
    }
    match beneath::read_referenced(&found, MAX_FILE_SIZE) {
        Ok(content) => Ok(LogContent::File(content)),
        Err(ReadError::NotRegular) => Err(missing()),
        Err(ReadError::TooLarge(_)) => Err(std::io::Error::other("the file is too large")),
        Err(ReadError::Io(error)) => Err(error),
    }
}

fn list(directory: &Path) -> std::io::Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", escaped(&entry.file_name().to_string_lossy())));
    }
    names.sort();
    let lines: String = names.iter().map(|name| format!("<a href=\"{name}\">{name}</a>\n")).collect();
    Ok(format!("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{lines}</pre>\n"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;")
}

fn plain(content: Vec<u8>) -> Response<Body> {
    with_type(content, "text/plain; charset=utf-8")
}

fn html(page: String) -> Response<Body> {
    with_type(page.into_bytes(), "text/html; charset=utf-8")
}

fn with_type(content: Vec<u8>, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(full(content));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_below_is_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("log");
        std::fs::create_dir_all(root.join("apt")).expect("a directory");
        std::fs::write(root.join("a<b"), "hello").expect("a file");
        std::fs::write(directory.path().join("secret"), "no").expect("a file");
        std::os::unix::fs::symlink(directory.path().join("secret"), root.join("link")).expect("a link");
        assert_eq!(read(&root, Path::new("a<b")).expect("a file"), LogContent::File(b"hello".to_vec()));
        let LogContent::Directory(page) = read(&root, Path::new("")).expect("a directory") else {
            panic!("a directory")
        };
        assert!(page.contains("<a href=\"apt/\">apt/</a>\n") && page.contains("a&lt;b"), "{page}");
        for outside in ["../secret", "link", "none", "/etc/passwd"] {
            assert!(read(&root, Path::new(outside)).is_err(), "{outside}");
        }
    }

    /// Whoever mounts the directory swaps a directory for a link between any two steps.
    #[test]
    fn a_directory_swapped_for_a_link_shows_nothing_outside() {
        use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
        use std::sync::atomic::{AtomicBool, Ordering};
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("log");
        let [inside, outside, link] = [root.join("pods"), directory.path().join("outside"), root.join("link")];
        for (place, text) in [(&inside, "log"), (&outside, "secret")] {
            std::fs::create_dir_all(place).expect("a directory");
            std::fs::write(place.join("a"), text).expect("a file");
        }
        std::os::unix::fs::symlink(&outside, &link).expect("a link");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    renameat2(AT_FDCWD, &inside, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).expect("exchanged");
                }
            });
            let mut shown = 0;
            for _ in 0..20_000 {
                match read(&root, Path::new("pods/a")) {
                    Ok(LogContent::File(content)) => {
                        assert_eq!(content, b"log");
                        shown += 1;
                    }
                    other => assert!(other.is_err()),
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(shown > 0);
        });
    }

    /// Links of `/var/log/containers` are absolute.
    #[test]
    fn an_absolute_link_inside_is_resolved_and_a_fifo_is_not_opened() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        std::fs::write(root.join("0.log"), "hello").expect("a file");
        std::os::unix::fs::symlink(root.join("0.log"), root.join("link")).expect("a link");
        nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert_eq!(read(root, Path::new("link")).expect("a file"), LogContent::File(b"hello".to_vec()));
        assert!(read(root, Path::new("fifo")).is_err());
    }
}
