//! Where each volume is published, recorded on disk, so that a volume for a single pod gets no second one.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::driver::Driver;
use crate::error::Error;
use crate::mount_table;
use crate::record::Volume;

/// A volume at a target: a pod that has it.
#[derive(Serialize, Deserialize)]
struct Publication {
    target: PathBuf,
    /// No other pod may have the volume meanwhile.
    exclusive: bool,
}

impl Driver {
    /// Records a publication before it is mounted, and refuses one where another excludes it.
    pub(super) fn claim(&self, volume: &Volume, target: &Path, exclusive: bool) -> Result<(), Error> {
        let directory = self.volume_directory(volume).join("published");
        fs::create_dir_all(&directory).map_err(Error::file("create", &directory))?;
        let table = mount_table::read()?;
        for entry in fs::read_dir(&directory).map_err(Error::file("list", &directory))?.flatten() {
            let text = fs::read(entry.path()).map_err(Error::file("read", &entry.path()))?;
            let other = serde_json::from_slice::<Publication>(&text).ok();
            let Some(other) = other.filter(|other| mount_table::at(&table, &other.target).is_some()) else {
                // Left by a crash or by a restart of the host.
                let _ = fs::remove_file(entry.path());
                continue;
            };
            if other.target != target && (exclusive || other.exclusive) {
                return Err(Error::Precondition(format!(
                    "volume {} is for a single pod and is published at {}",
                    volume.id,
                    other.target.display()
                )));
            }
        }
        let path = directory.join(file_name(target));
        let publication = Publication { target: target.to_path_buf(), exclusive };
        let text = serde_json::to_vec(&publication).map_err(|error| Error::Internal(error.to_string()))?;
        fs::write(&path, text).map_err(Error::file("write", &path))
    }

    /// Removes the record of a publication. One that stays is ignored, as nothing is mounted there.
    pub(super) fn disclaim(&self, volume: &Volume, target: &Path) {
        let _ = fs::remove_file(self.volume_directory(volume).join("published").join(file_name(target)));
    }
}

/// A file name for a path.
fn file_name(target: &Path) -> String {
    let digest = Sha256::digest(target.as_os_str().as_encoded_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
