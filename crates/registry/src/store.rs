//! The files of a registry.
//!
//! `blobs/DIGEST` holds contents, manifests among them; `repositories/NAME/_manifests/DIGEST` the media type of each manifest of
//! a repository; `repositories/NAME/_tags/TAG` the digest it stands for; `uploads` what is being received. Names contain no
//! component that starts with an underscore. Files appear whole, by a rename.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::reference::{Digest, Name, Reference, Tag};

/// A registry's directory. Calls block.
#[derive(Clone)]
pub struct Store {
    directory: Arc<PathBuf>,
}

/// A stored manifest.
#[derive(Debug, PartialEq, Eq)]
pub struct Manifest {
    pub digest: Digest,
    pub media_type: String,
    pub content: Vec<u8>,
}

impl Store {
    /// Opens a directory. What earlier processes were receiving is dropped.
    pub fn open(directory: &Path) -> io::Result<Store> {
        let store = Store { directory: Arc::new(directory.to_owned()) };
        match std::fs::remove_dir_all(store.uploads()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for below in [store.uploads(), store.blobs(), store.repositories()] {
            std::fs::create_dir_all(below)?;
        }
        Ok(store)
    }

    fn uploads(&self) -> PathBuf {
        self.directory.join("uploads")
    }

    fn blobs(&self) -> PathBuf {
        self.directory.join("blobs")
    }

    fn repositories(&self) -> PathBuf {
        self.directory.join("repositories")
    }

    /// The file of a blob, which may not exist.
    pub fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.digits())
    }

    /// The file of an upload, which may not exist. The identifier is a UUID.
    pub fn upload(&self, id: &str) -> PathBuf {
        self.uploads().join(id)
    }

    fn manifests(&self, name: &Name) -> PathBuf {
        self.repositories().join(name.as_str()).join("_manifests")
    }

    fn tags(&self, name: &Name) -> PathBuf {
        self.repositories().join(name.as_str()).join("_tags")
    }

    /// Starts an upload and returns its identifier.
    pub fn start_upload(&self) -> io::Result<String> {
        let id = uuid::Uuid::new_v4().to_string();
        std::fs::File::options().write(true).create_new(true).open(self.upload(&id))?;
        Ok(id)
    }

    /// Opens an upload for one request to append to. While another does, nobody else writes or finishes it: what has a digest
    /// is not changed any more.
    pub fn claim_upload(&self, id: &str) -> Result<File, Error> {
        let path = self.upload(id);
        let file = File::options().append(true).open(&path).map_err(unknown(Error::UploadUnknown))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::UploadInvalid("another request is writing to it".to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // It may have been finished meanwhile, and then is a blob.
        let current = std::fs::metadata(&path).map_err(unknown(Error::UploadUnknown))?;
        if current.ino() == file.metadata()?.ino() { Ok(file) } else { Err(Error::UploadUnknown) }
    }

    /// Makes an upload that the caller has claimed a blob, if it has the digest; otherwise it is dropped.
    pub fn finish_upload(&self, id: &str, digest: &Digest) -> Result<(), Error> {
        let path = self.upload(id);
        let mut file = std::fs::File::open(&path).map_err(unknown(Error::UploadUnknown))?;
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
        }
        if Digest::finish(hash) != *digest {
            std::fs::remove_file(&path)?;
            return Err(Error::DigestInvalid);
        }
        Ok(std::fs::rename(&path, self.blob(digest))?)
    }

    pub fn drop_upload(&self, id: &str) -> Result<(), Error> {
        std::fs::remove_file(self.upload(id)).map_err(unknown(Error::UploadUnknown))
    }

    pub fn delete_blob(&self, digest: &Digest) -> Result<(), Error> {
        std::fs::remove_file(self.blob(digest)).map_err(unknown(Error::BlobUnknown))
    }

    /// Stores a manifest under its digest and, if it was named by a tag, under that.
    pub fn put_manifest(
        &self,
        name: &Name,
        reference: &Reference,
        media_type: &str,
        content: &[u8],
    ) -> Result<Digest, Error> {
        let digest = Digest::of(content);
        if let Reference::Digest(expected) = reference
            && *expected != digest
        {
            return Err(Error::DigestInvalid);
        }
        self.check_references(name, content)?;
        self.write(&self.blob(&digest), content)?;
        std::fs::create_dir_all(self.manifests(name))?;
        self.write(&self.manifests(name).join(digest.digits()), media_type.as_bytes())?;
        if let Reference::Tag(tag) = reference {
            std::fs::create_dir_all(self.tags(name))?;
            self.write(&self.tags(name).join(tag.as_str()), digest.to_string().as_bytes())?;
        }
        Ok(digest)
    }

    /// Refuses a manifest whose blobs were not pushed before.
    fn check_references(&self, name: &Name, content: &[u8]) -> Result<(), Error> {
        let manifest: serde_json::Value =
            serde_json::from_slice(content).map_err(|error| Error::ManifestInvalid(error.to_string()))?;
        if manifest.get("schemaVersion").and_then(serde_json::Value::as_u64) != Some(2) {
            return Err(Error::ManifestInvalid("schemaVersion is not 2".to_owned()));
        }
        let list = |field: &str| manifest.get(field).and_then(serde_json::Value::as_array).into_iter().flatten();
        let digest = |descriptor: &serde_json::Value| {
            let text = descriptor.get("digest").and_then(serde_json::Value::as_str).unwrap_or_default();
            Digest::parse(text).map_err(|_| Error::ManifestInvalid(format!("{text:?} is not a digest")))
        };
        // Layers with addresses of their own need not be here.
        let is_local = |descriptor: &&serde_json::Value| descriptor.get("urls").is_none();
        for blob in manifest.get("config").into_iter().chain(list("layers")).filter(is_local) {
            let digest = digest(blob)?;
            if !self.blob(&digest).is_file() {
                return Err(Error::ManifestBlobUnknown(digest.to_string()));
            }
        }
        for inner in list("manifests") {
            let digest = digest(inner)?;
            if !self.manifests(name).join(digest.digits()).is_file() {
                return Err(Error::ManifestBlobUnknown(digest.to_string()));
            }
        }
        Ok(())
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(self.uploads())?;
        file.write_all(content)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    pub fn manifest(&self, name: &Name, reference: &Reference) -> Result<Manifest, Error> {
        let digest = match reference {
            Reference::Digest(digest) => digest.clone(),
            Reference::Tag(tag) => self.tagged(name, tag)?,
        };
        let media_type = std::fs::read_to_string(self.manifests(name).join(digest.digits()));
        let media_type = media_type.map_err(unknown(Error::ManifestUnknown))?;
        let content = std::fs::read(self.blob(&digest)).map_err(unknown(Error::ManifestUnknown))?;
        Ok(Manifest { digest, media_type, content })
    }

    fn tagged(&self, name: &Name, tag: &Tag) -> Result<Digest, Error> {
        let text = std::fs::read_to_string(self.tags(name).join(tag.as_str()));
        Digest::parse(&text.map_err(unknown(Error::ManifestUnknown))?)
    }

    /// Deletes a tag, or a manifest with all tags that lead to it. Blobs stay.
    pub fn delete_manifest(&self, name: &Name, reference: &Reference) -> Result<(), Error> {
        let digest = match reference {
            Reference::Tag(tag) => {
                let removed = std::fs::remove_file(self.tags(name).join(tag.as_str()));
                return removed.map_err(unknown(Error::ManifestUnknown));
            }
            Reference::Digest(digest) => digest,
        };
        std::fs::remove_file(self.manifests(name).join(digest.digits())).map_err(unknown(Error::ManifestUnknown))?;
        for tag in names(&self.tags(name))? {
            let path = self.tags(name).join(&tag);
            if std::fs::read_to_string(&path)? == digest.to_string() {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// The tags of a repository, in order.
    pub fn list_tags(&self, name: &Name) -> Result<Vec<String>, Error> {
        if !self.manifests(name).is_dir() {
            return Err(Error::NameUnknown);
        }
        Ok(names(&self.tags(name))?)
    }

    /// The repositories, in order.
    pub fn list_repositories(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut waiting = vec![String::new()];
        while let Some(name) = waiting.pop() {
            for inner in names(&self.repositories().join(&name))? {
                match inner.as_str() {
                    "_manifests" => found.push(name.clone()),
                    "_tags" => {}
                    _ if name.is_empty() => waiting.push(inner),
                    _ => waiting.push(format!("{name}/{inner}")),
                }
            }
        }
        found.sort();
        Ok(found)
    }
}

/// The sorted names in a directory, which need not exist.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Turns a missing file into the error that says what is missing.
fn unknown(error: Error) -> impl FnOnce(io::Error) -> Error {
    move |cause| if cause.kind() == io::ErrorKind::NotFound { error } else { Error::Disk(cause) }
}
