//! Serves the host's log files (`/logs/`).

use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};

use http::{HeaderValue, Response, StatusCode, header};

use super::{Body, full, text};
use crate::beneath::{self, Directory, Links};

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
    let (root, path) = (root.canonicalize()?, root.join(relative).canonicalize()?);
    if !path.starts_with(&root) {
        return Err(missing());
    }
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Ok(LogContent::Directory(list(&path)?));
    }
    if !metadata.is_file() {
        return Err(missing());
    }
    if metadata.len() > MAX_FILE_SIZE {
        return Err(std::io::Error::other("the file is too large"));
    }
    std::fs::read(path).map(LogContent::File)
}

fn list(directory: &Path) -> std::io::Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let slash = if entry.path().is_dir() { "/" } else { "" };
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
}
