//! The copy on disk of who has which resources. Without it, a restarted node would give them to others.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

const FILE: &str = "resource_grants.json";

/// The file of grants.
pub struct Checkpoint(PathBuf);

impl Checkpoint {
    /// `root` is where the node keeps its state.
    pub fn new(root: &Path) -> Self {
        Checkpoint(root.join(FILE))
    }

    /// The grants; none if there is no file. One that cannot be read is an error: what is free is unknown then.
    pub fn load<T: DeserializeOwned + Default>(&self) -> io::Result<T> {
        match std::fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            read => Ok(serde_json::from_slice(&read?)?),
        }
    }

    /// Writes all grants, complete or not at all.
    pub fn save(&self, grants: &impl Serialize) -> io::Result<()> {
        let fresh = self.0.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(grants)?)?;
        file.sync_all()?;
        knarr_files::rename_durably(&fresh, &self.0)
    }
}
