//! Private files, written atomically.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::Error;

pub fn private_directory(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| failed("create", path, source))
}

pub fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("read", path, source)),
    }
}

/// Writes a temporary file and renames it, so that a crash leaves either the old file or the new one.
pub fn write(path: &Path, text: &str) -> Result<(), Error> {
    let beside = path.with_extension("new");
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        knarr_files::rename_durably(&beside, path)
    })();
    written.map_err(|source| failed("write", path, source))
}

pub fn read_or_create(path: &Path, create: impl FnOnce() -> Result<String, Error>) -> Result<String, Error> {
    if let Some(text) = read(path)? {
        return Ok(text);
    }
    let text = create()?;
    write(path, &text)?;
    Ok(text)
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}
