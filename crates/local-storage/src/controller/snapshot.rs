//! Snapshots of volumes, and the copy of a volume's content that both snapshots and clones need.

use std::fs::File;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use knarr_csi::messages::{self as csi, CreateSnapshotRequest, Timestamp};

use super::in_use;
use crate::driver::Driver;
use crate::error::Error;
use crate::freeze::Frozen;
use crate::plan::{present, signed};
use crate::record::{self, Kind, Snapshot, Volume};
use crate::store::{DATA, IMAGE};
use crate::{copy, loop_device};

impl Driver {
    pub(super) fn create_snapshot(&self, request: &CreateSnapshotRequest) -> Result<Snapshot, Error> {
        present(&request.name, "the name")?;
        present(&request.source_volume_id, "the source volume ID")?;
        if let Some(key) = request.parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/")) {
            return Err(Error::Invalid(format!("the parameter {key} is unknown")));
        }
        let _name = self.lock(&format!("the snapshot name {}", request.name))?;
        if let Some(found) = self.state.lock().snapshots.named(&request.name) {
            if found.volume == request.source_volume_id {
                return Ok(found.clone());
            }
            return Err(Error::Exists(format!("snapshot {} of another volume exists", request.name)));
        }
        let _busy = self.lock(&request.source_volume_id)?;
        let volume = self.volume(&request.source_volume_id)?;
        let needed = match volume.kind {
            Kind::Directory => 0,
            _ => copy::allocated(&self.image(&volume))?,
        };
        let _reserved = self.reserve(needed)?;
        let id = record::random_id();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let snapshot = Snapshot {
            id: id.clone(),
            name: request.name.clone(),
            volume: volume.id.clone(),
            bytes: volume.bytes,
            kind: volume.kind.clone(),
            created: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        };
        let built = self.layout.new_directory(&id).and_then(|directory| {
            self.copy(&volume, &directory)?;
            record::write(&directory, &snapshot)?;
            self.layout.finish(&id, &self.layout.snapshots())
        });
        if let Err(error) = built {
            self.layout.abandon(&id);
            return Err(error);
        }
        self.state.lock().snapshots.insert(snapshot.clone());
        Ok(snapshot)
    }

    pub(super) fn delete_snapshot(&self, id: &str) -> Result<(), Error> {
        present(id, "the snapshot ID")?;
        let _busy = self.lock(id)?;
        if self.state.lock().snapshots.get(id).is_none() {
            return Ok(());
        }
        self.layout.retire(id, &self.layout.snapshots())?;
        self.state.lock().snapshots.remove(id);
        self.layout.remove_retired(id);
        Ok(())
    }

    pub(super) fn snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        let found = self.state.lock().snapshots.get(id).cloned();
        found.ok_or_else(|| Error::NotFound(format!("snapshot {id:?} does not exist")))
    }

    /// Copies the content of a volume as it is at one moment.
    pub(super) fn copy(&self, volume: &Volume, directory: &Path) -> Result<(), Error> {
        let (from, to) = (self.image(volume), directory.join(IMAGE));
        let mounts = self.mounts(volume)?;
        match &volume.kind {
            Kind::Filesystem { .. } => {
                let _frozen = mounts.first().map(|mount| Frozen::new(&mount.target)).transpose()?;
                copy::image(&from, &to).map(drop)
            }
            Kind::Block => {
                let device = loop_device::find(&from)?;
                if let Some(device) = &device {
                    let open = File::open(&device.path).map_err(Error::file("open", &device.path))?;
                    open.sync_all().map_err(Error::file("sync", &device.path))?;
                }
                if mounts.is_empty() {
                    return copy::image(&from, &to).map(drop);
                }
                match copy::reflink(&from, &to)? {
                    true => Ok(()),
                    false => {
                        Err(in_use(volume, "is published, and the disk of the node cannot copy a file in one moment"))
                    }
                }
            }
            Kind::Directory if mounts.is_empty() => copy::directory(&self.data(volume), &directory.join(DATA)),
            Kind::Directory => Err(in_use(volume, "is mounted, and a directory cannot be copied in one moment")),
        }
    }
}

pub(super) fn describe_snapshot(snapshot: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: signed(snapshot.bytes),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(Timestamp { seconds: snapshot.created, nanos: 0 }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    }
}
