//! Stages a volume on the node, once for all its pods, and undoes that.

use std::io;
use std::path::{Path, PathBuf};

use knarr_csi::messages::{NodeStageVolumeRequest, NodeUnstageVolumeRequest, secrets};

use super::drivers::Driver;
use super::error::{CsiError, is_final, plugin_text};
use super::mount::Mount;
use super::record::{Record, missing_is_fine};
use super::state::{Progress, VolumeState};
use super::volume::VolumeId;
use super::{Csi, cluster};
use crate::journey_events;
use crate::mount::unmount_all_at;
use crate::private;

impl Csi {
    /// The staging path of a volume.
    pub(super) fn stage_path(&self, id: &VolumeId, spec_name: &str, block: bool) -> PathBuf {
        match block {
            true => self.paths.device_stage(spec_name),
            false => self.paths.stage(&id.driver, &id.handle),
        }
    }

    pub(super) async fn stage(&self, mount: &Mount<'_>) -> Result<(), CsiError> {
        let (volume, step) = (mount.volume, mount.stage_step());
        if !volume.is_persistent() || !mount.capabilities.stages() {
            return Ok(());
        }
        let before = self.state.get(&volume.id).map(|known| known.staged).unwrap_or_default();
        if before == Progress::Done {
            return Ok(());
        }
        let credentials = cluster::secret(&self.client, volume.stage_secret.as_ref()).await.map_err(|text| {
            let secret = volume.stage_secret.clone().unwrap_or_default();
            let (namespace, name) = (secret.namespace.unwrap_or_default(), secret.name.unwrap_or_default());
            mount.failed(step, format!("fetching NodeStageSecretRef {namespace}/{name} failed: {text}"))
        })?;
        let path = self.stage_path(&volume.id, &volume.spec_name, volume.block);
        self.prepare_stage(mount, &path).map_err(|error| {
            let text = format!("attacher.MountDevice failed to create dir \"{}\":  {error}", path.display());
            mount.failed(step, plugin_text(text))
        })?;
        self.state.set_staged(&volume.id, Progress::Uncertain);
        let request = NodeStageVolumeRequest {
            volume_id: volume.id.handle.clone(),
            publish_context: mount.publish_context.clone(),
            staging_target_path: path.to_string_lossy().into_owned(),
            volume_capability: Some(mount.capabilities.capability(volume, &mount.options, mount.group)),
            secrets: secrets(credentials.0),
            volume_context: volume.attributes.clone(),
        };
        let span = journey_events::staged(mount.request.pod, &volume.spec_name, &volume.id.driver);
        let staged = mount.driver.client.node_stage_volume(request).await;
        journey_events::outcome(&span, &staged);
        match staged {
            Ok(_) => {
                self.state.set_staged(&volume.id, Progress::Done);
                Ok(())
            }
            Err(error) => {
                // A volume that a previous process staged stays staged, since it may be in use.
                if is_final(&error) && before == Progress::Not {
                    self.forget_stage(&volume.id, &volume.spec_name, volume.block);
                }
                Err(mount.failed(step, error.rpc_message()))
            }
        }
    }

    /// The record is written first: what it names is unstaged, whatever happens next.
    fn prepare_stage(&self, mount: &Mount<'_>, path: &Path) -> io::Result<()> {
        let volume = mount.volume;
        let record = Record {
            driver_name: volume.id.driver.clone(),
            volume_handle: volume.id.handle.clone(),
            ..Default::default()
        };
        match volume.block {
            true => self.device_record(volume).save(&self.paths.device_data(&volume.spec_name))?,
            false => record.save(path.parent().unwrap_or(path))?,
        }
        private::create_all(path)
    }

    fn forget_stage(&self, id: &VolumeId, spec_name: &str, block: bool) {
        match self.remove_stage(id, spec_name, block) {
            Ok(()) => self.state.set_staged(id, Progress::Not),
            Err(error) => tracing::warn!(%error, volume = spec_name, "cannot remove the staging path of a volume"),
        }
    }

    /// Removes the directories and the record of a volume that is not staged any more.
    fn remove_stage(&self, id: &VolumeId, spec_name: &str, block: bool) -> io::Result<()> {
        let path = self.stage_path(id, spec_name, block);
        unmount_all_at(&path).map_err(io::Error::other)?;
        if !block {
            missing_is_fine(std::fs::remove_dir(&path))?;
            let parent = path.parent().unwrap_or(&path);
            Record::remove(parent)?;
            return missing_is_fine(std::fs::remove_dir(parent));
        }
        // The driver may leave files of its own in the staging path of a device.
        missing_is_fine(crate::tree::remove(&path))?;
        missing_is_fine(std::fs::remove_dir(self.paths.device_publish_directory(spec_name)))?;
        Record::remove(&self.paths.device_data(spec_name))?;
        for directory in [
            self.paths.device_data(spec_name),
            self.paths.device_map(spec_name, "x").parent().unwrap_or(Path::new("")).to_path_buf(),
            self.paths.device_volume(spec_name),
        ] {
            missing_is_fine(std::fs::remove_dir(directory))?;
        }
        Ok(())
    }

    /// Unstages a volume that no pod uses. The caller holds its lock.
    pub(super) async fn unstage(&self, driver: &Driver, id: &VolumeId, known: &VolumeState) -> Result<(), String> {
        let capabilities = driver.capabilities().await.map_err(|error| error.rpc_message())?;
        let path = self.stage_path(id, &known.spec_name, known.block);
        if capabilities.stages() {
            self.state.set_staged(id, Progress::Uncertain);
            let request = NodeUnstageVolumeRequest {
                volume_id: id.handle.clone(),
                staging_target_path: path.to_string_lossy().into_owned(),
            };
            let unstaged = driver.client.node_unstage_volume(request).await;
            unstaged.map_err(|error| plugin_text(format!("attacher.UnmountDevice failed: {error}")))?;
        }
        self.remove_stage(id, &known.spec_name, known.block)
            .map_err(|error| plugin_text(format!("failed to clean up global mount {}: {error}", path.display())))?;
        self.state.set_staged(id, Progress::Not);
        Ok(())
    }
}
