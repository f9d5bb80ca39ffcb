//! The host's own log files, to be read by whoever may read the node's logs.

use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};

use http::{HeaderValue, Response, StatusCode, header};

use super::{Body, full, text};
use crate::beneath::{self, Directory, Links};

/// More of one file is not read into memory for anybody.
const LARGEST_FILE: u64 = 64 << 20;

/// A file's content, or a folder's list, below `root`. Nothing outside of it is shown, whatever links lead there.
pub async fn answer(root: &Path, parts: &[&str]) -> Response<Body> {
    let (root, relative): (PathBuf, PathBuf) = (root.to_path_buf(), parts.iter().collect());
    let read = tokio::task::spawn_blocking(move || read(&root, &relative)).await;
    match read {
        Ok(Ok(Shown::File(content))) => plain(content),
        Ok(Ok(Shown::Folder(page))) => html(page),
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
        // A folder may hold the file that is looked for next.
        return Err(std::io::ErrorKind::NotFound.into());
    }
    std::fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Whether there is a file or folder of that path below `root`.
pub fn exists(root: &Path, relative: &Path) -> std::io::Result<()> {
    Directory::open(root)?.resolve(relative, Links::Inside).map(drop)
}

#[derive(Debug, PartialEq)]
enum Shown {
    File(Vec<u8>),
    Folder(String),
}

fn read(root: &Path, relative: &Path) -> std::io::Result<Shown> {
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
        return Ok(Shown::Folder(list(&path)?));
    }
    if !metadata.is_file() {
        return Err(missing());
    }
    if metadata.len() > LARGEST_FILE {
        return Err(std::io::Error::other("the file is too large to be shown"));
    }
    std::fs::read(path).map(Shown::File)
}

fn list(folder: &Path) -> std::io::Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
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
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("log");
        std::fs::create_dir_all(root.join("apt")).expect("a folder");
        std::fs::write(root.join("a<b"), "hello").expect("a file");
        std::fs::write(folder.path().join("secret"), "no").expect("a file");
        std::os::unix::fs::symlink(folder.path().join("secret"), root.join("link")).expect("a link");
        assert_eq!(read(&root, Path::new("a<b")).expect("a file"), Shown::File(b"hello".to_vec()));
        let Shown::Folder(page) = read(&root, Path::new("")).expect("a folder") else { panic!("a folder") };
        assert!(page.contains("<a href=\"apt/\">apt/</a>\n") && page.contains("a&lt;b"), "{page}");
        for outside in ["../secret", "link", "none", "/etc/passwd"] {
            assert!(read(&root, Path::new(outside)).is_err(), "{outside}");
        }
    }
}
