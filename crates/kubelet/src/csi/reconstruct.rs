//! Finds the volumes of a previous process by their records on disk. Whatever a record names may be staged or
//! published, also for pods that are gone by now.

use std::path::{Path, PathBuf};

use super::Csi;
use super::paths::{ESCAPED_PLUGIN, Paths, pod_of};
use super::record::Record;
use super::state::{Progress, VolumeState};
use super::volume::VolumeId;

impl Csi {
    pub(super) fn reconstruct(&self) {
        for (_, directory) in self.paths.pods().iter().flat_map(|pods| entries(pods)) {
            for (_, volume) in entries(&directory.join("volumes").join(ESCAPED_PLUGIN)) {
                self.find_published(&volume);
            }
        }
        for (driver, directory) in entries(&self.paths.plugin()) {
            if driver != "volumeDevices" {
                entries(&directory).iter().for_each(|(_, volume)| self.find_staged(volume));
            }
        }
        for (name, directory) in entries(&self.paths.device_volumes()) {
            if Paths::is_device_volume(&name) {
                self.find_device(&name, &directory);
            }
        }
    }

    /// The same for one pod. What is known already stays as it is.
    pub(super) fn reconstruct_pod(&self, uid: &str) {
        for (_, volume) in entries(&self.paths.pod_volumes(uid)) {
            self.find_published(&volume);
        }
        for (name, _) in links(&self.paths.pod_devices(uid)) {
            self.find_device(&name, &self.paths.device_volume(&name));
        }
    }

    fn find_published(&self, directory: &Path) {
        let (Some(record), Some(uid)) = (load(directory), pod_of(directory)) else { return };
        let id = id_of(&record);
        let known = VolumeState {
            // The path decides, as the record may be of an older version.
            spec_name: name_of(directory),
            persistent: record.lifecycle != "Ephemeral",
            ..Default::default()
        };
        self.adopt(&id, &uid, known);
    }

    fn find_staged(&self, directory: &Path) {
        let Some(record) = load(directory) else { return };
        let id = id_of(&record);
        self.state.add_volume(&id, VolumeState { persistent: true, ..Default::default() });
        self.adopt_stage(&id);
    }

    fn find_device(&self, name: &str, directory: &Path) {
        let Some(record) = load(&directory.join("data")) else { return };
        let id = id_of(&record);
        let known = || VolumeState { spec_name: name.to_string(), block: true, persistent: true, ..Default::default() };
        self.state.add_volume(&id, known());
        self.adopt_stage(&id);
        for (uid, _) in
            links(&self.paths.device_publish_directory(name)).into_iter().chain(links(&directory.join("dev")))
        {
            self.adopt(&id, &uid, known());
        }
    }

    fn adopt(&self, id: &VolumeId, uid: &str, known: VolumeState) {
        let is_known = self.state.get(id).is_some_and(|volume| volume.users.contains_key(uid));
        if !is_known {
            self.state.add_user(id, uid, known);
            self.state.set_published(id, uid, Progress::Uncertain);
        }
    }

    fn adopt_stage(&self, id: &VolumeId) {
        if self.state.get(id).is_some_and(|volume| volume.staged == Progress::Not) {
            self.state.set_staged(id, Progress::Uncertain);
        }
    }
}

fn id_of(record: &Record) -> VolumeId {
    VolumeId { driver: record.driver_name.clone(), handle: record.volume_handle.clone() }
}

fn load(directory: &Path) -> Option<Record> {
    match Record::load(directory) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(%error, directory = %directory.display(), "cannot read the record of a CSI volume");
            None
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The directories in a directory.
fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let mut found = links(directory);
    found.retain(|(_, path)| std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()));
    found
}

/// All entries of a directory.
fn links(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect()
}
