//! The directories of volumes and snapshots, and an index of them in memory.
//!
//! New ones are built below `creating` and get their final name by a rename; deleted ones are renamed into `deleting` first.
//! What a killed process left in either is removed at the next start.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::loop_device;
use crate::record::{self, Record};

/// The image file of a volume or snapshot.
pub const IMAGE: &str = "image";
/// The directory of a volume or snapshot without an image.
pub const DATA: &str = "data";

/// The directories of one data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Creates the directories, closed to other users, and removes what was left half done.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let layout = Self { root: root.to_path_buf() };
        for name in ["volumes", "snapshots", "creating", "deleting"] {
            let directory = layout.root.join(name);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
            made.map_err(Error::file("create", &directory))?;
        }
        layout.remove_leftovers();
        Ok(layout)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A new directory to build something with this ID in.
    pub fn new_directory(&self, id: &str) -> Result<PathBuf, Error> {
        let directory = self.root.join("creating").join(id);
        DirBuilder::new().mode(0o700).create(&directory).map_err(Error::file("create", &directory))?;
        Ok(directory)
    }

    /// Removes what was built.
    pub fn abandon(&self, id: &str) {
        let directory = self.root.join("creating").join(id);
        if let Err(error) = remove(&directory) {
            tracing::warn!(%error, "cannot remove an unfinished volume; the next start tries again");
        }
    }

    /// Gives what was built its final name.
    pub fn finish(&self, id: &str, parent: &Path) -> Result<(), Error> {
        let built = self.root.join("creating").join(id);
        record::sync_directory(&built)?;
        fs::rename(&built, parent.join(id)).map_err(Error::file("rename", &built))?;
        record::sync_directory(parent)
    }

    /// Takes the final name from something: it no longer exists when this returns.
    pub fn retire(&self, id: &str, parent: &Path) -> Result<(), Error> {
        let from = parent.join(id);
        fs::rename(&from, self.root.join("deleting").join(id)).map_err(Error::file("rename", &from))?;
        record::sync_directory(parent)
    }

    /// Frees the space of something retired. What fails is tried again at the next start.
    pub fn remove_retired(&self, id: &str) {
        if let Err(error) = remove(&self.root.join("deleting").join(id)) {
            tracing::warn!(%error, "cannot free the space of a deleted volume; the next start tries again");
        }
    }

    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    pub fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    fn remove_leftovers(&self) {
        for parent in ["creating", "deleting"].map(|name| self.root.join(name)) {
            for directory in entries(&parent) {
                if let Err(error) = remove(&directory) {
                    tracing::warn!(%error, "cannot remove what an interrupted operation left");
                }
            }
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(directory).map(|read| read.flatten().map(|entry| entry.path()).collect());
    read.unwrap_or_default()
}

/// Removes a directory of ours with everything in it. A loop device of its image is detached first.
fn remove(directory: &Path) -> Result<(), Error> {
    let image = directory.join(IMAGE);
    if image.exists() {
        loop_device::detach_all(&image)?;
    }
    // A pod may have left a tree of any depth, which is beyond recursion.
    let output = Command::new("rm").args(["-rf", "--one-file-system", "--"]).arg(directory).output();
    let output = output.map_err(Error::file("start rm for", directory))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(Error::Program { program: "rm".into(), message })
}

/// All records of one kind, by ID and by name.
pub struct Index<R> {
    by_id: BTreeMap<String, R>,
    ids_by_name: BTreeMap<String, String>,
}

impl<R: Record> Index<R> {
    /// Reads all records. A directory whose record cannot be read is kept and reported.
    pub fn load(parent: &Path) -> Self {
        let mut index = Self { by_id: BTreeMap::new(), ids_by_name: BTreeMap::new() };
        for directory in entries(parent) {
            let id = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match record::read::<R>(&directory) {
                Ok(found) if found.id() == id && record::is_id(id) => index.insert(found),
                Ok(_) => tracing::error!(directory = %directory.display(), "the record is of another directory"),
                Err(error) => tracing::error!(%error, "a volume or snapshot cannot be used"),
            }
        }
        index
    }

    pub fn get(&self, id: &str) -> Option<&R> {
        self.by_id.get(id)
    }

    pub fn named(&self, name: &str) -> Option<&R> {
        self.by_id.get(self.ids_by_name.get(name)?)
    }

    pub fn insert(&mut self, record: R) {
        self.ids_by_name.insert(record.name().to_string(), record.id().to_string());
        self.by_id.insert(record.id().to_string(), record);
    }

    pub fn remove(&mut self, id: &str) {
        if let Some(record) = self.by_id.remove(id) {
            self.ids_by_name.remove(record.name());
        }
    }

    /// In the order of their IDs.
    pub fn all(&self) -> impl Iterator<Item = &R> {
        self.by_id.values()
    }
}
