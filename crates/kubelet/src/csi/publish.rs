//! Publishes a volume for one pod, and undoes that.

use std::io;
use std::path::{Path, PathBuf};

use knarr_csi::messages::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest, secrets};

use super::cluster::Credentials;
use super::drivers::Driver;
use super::error::{CsiError, is_final, plugin_text};
use super::mount::Mount;
use super::paths::attachment_name;
use super::record::{Record, missing_is_fine};
use super::state::{Progress, VolumeState};
use super::volume::{CsiVolume, VolumeId, pod_attributes};
use super::{Csi, cluster};
use crate::journey_events;
use crate::mount::{bind, is_mount_point, unmount_all_at};
use crate::ownership;
use crate::pod;
use crate::private;

impl Csi {
    /// Publishes the volume. `again` means that the pod already has it, and keeps it if this fails.
    pub(super) async fn publish(&self, mount: &Mount<'_>, again: bool) -> Result<(), CsiError> {
        let (volume, step, uid) = (mount.volume, mount.publish_step(), mount.uid());
        if let Some(problem) = mount.policy.mode_problem(&volume.id.driver, volume.lifecycle) {
            let text = format!("mounter.SetupAt failed to check volume lifecycle mode: {problem}");
            return Err(mount.failed(step, plugin_text(text)));
        }
        let (context, credentials) = self.publish_inputs(mount).await?;
        let target = self.prepare_publish(mount, uid).map_err(|(path, error)| {
            let text = format!("mounter.SetUpAt failed to create dir \"{}\":  {error}", path.display());
            mount.failed(step, plugin_text(text))
        })?;
        let staging = (volume.is_persistent() && mount.capabilities.stages())
            .then(|| self.stage_path(&volume.id, &volume.spec_name, volume.block));
        let request = NodePublishVolumeRequest {
            volume_id: volume.id.handle.clone(),
            publish_context: mount.publish_context.clone(),
            staging_target_path: staging.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
            target_path: target.to_string_lossy().into_owned(),
            volume_capability: Some(mount.capabilities.capability(volume, &mount.options, mount.group)),
            readonly: volume.read_only,
            secrets: secrets(credentials.0),
            volume_context: context,
        };
        let before = self.state.published(&volume.id, uid);
        if !again {
            self.state.set_published(&volume.id, uid, Progress::Uncertain);
        }
        let span = journey_events::published(mount.request.pod, &volume.spec_name, &volume.id.driver);
        let published = mount.driver.client.node_publish_volume(request).await;
        journey_events::outcome(&span, &published);
        drop(span);
        if let Err(error) = published {
            // Removing a path that the pod may have mounted would leave it without the volume.
            if is_final(&error) && before == Progress::Not {
                match self.remove_published(&volume.spec_name, volume.block, uid) {
                    Ok(()) => self.state.set_published(&volume.id, uid, Progress::Not),
                    Err(error) => tracing::warn!(%error, volume = volume.spec_name, "cannot remove a mount point"),
                }
            }
            return Err(mount.failed(step, error.rpc_message()));
        }
        if volume.block {
            self.map(volume, uid).map_err(|error| mount.failed(step, error.to_string()))?;
        } else if !again {
            self.apply_group(mount, &target).await?;
        }
        self.state.set_published(&volume.id, uid, Progress::Done);
        Ok(())
    }

    /// The volume context and the secrets of the call.
    async fn publish_inputs(
        &self,
        mount: &Mount<'_>,
    ) -> Result<(std::collections::BTreeMap<String, String>, Credentials), CsiError> {
        let (volume, step, pod) = (mount.volume, mount.publish_step(), mount.request.pod);
        let mut context = volume.attributes.clone();
        if mount.policy.pod_info {
            context.extend(pod_attributes(pod, volume.lifecycle));
        }
        let mut credentials = cluster::secret(&self.client, volume.publish_secret.as_ref()).await.map_err(|text| {
            let secret = volume.publish_secret.clone().unwrap_or_default();
            let (namespace, name) = (secret.namespace.unwrap_or_default(), secret.name.unwrap_or_default());
            mount.failed(step, format!("fetching NodePublishSecretRef {namespace}/{name} failed: {text}"))
        })?;
        // Block volumes get no tokens, as upstream.
        if !volume.block {
            let tokens = cluster::tokens(&self.tokens, pod, &mount.policy.token_requests).await.map_err(|text| {
                let text = format!("mounter.SetUpAt failed to get service accoount token attributes: {text}");
                mount.failed(step, plugin_text(text))
            })?;
            match mount.policy.tokens_in_secrets {
                true => credentials.0.extend(tokens.0),
                false => context.extend(tokens.0),
            }
        }
        Ok((context, credentials))
    }

    /// Writes the record and creates the parent of the target, which the driver creates itself.
    fn prepare_publish(&self, mount: &Mount<'_>, uid: &str) -> Result<PathBuf, (PathBuf, io::Error)> {
        let volume = mount.volume;
        if volume.block {
            let data = self.paths.device_data(&volume.spec_name);
            self.device_record(volume).save(&data).map_err(|error| (data, error))?;
            // Its record is removed with the staging path, which some drivers have no use for.
            if self.state.get(&volume.id).is_some_and(|known| known.staged == Progress::Not) {
                self.state.set_staged(&volume.id, Progress::Uncertain);
            }
            let target = self.paths.device_publish(&volume.spec_name, uid);
            let parent = self.paths.device_publish_directory(&volume.spec_name);
            private::create_all(&parent).map_err(|error| (parent, error))?;
            return Ok(target);
        }
        let directory = self.paths.pod_volume(uid, &volume.spec_name);
        let record = Record { lifecycle: volume.lifecycle.name().to_string(), ..self.device_record(volume) };
        record.save(&directory).map_err(|error| (directory, error))?;
        Ok(self.paths.publish(uid, &volume.spec_name))
    }

    pub(super) fn device_record(&self, volume: &CsiVolume) -> Record {
        Record {
            driver_name: volume.id.driver.clone(),
            volume_handle: volume.id.handle.clone(),
            spec_name: volume.spec_name.clone(),
            node_name: self.node_name.clone(),
            attachment: attachment_name(&volume.id.handle, &volume.id.driver, &self.node_name),
            ..Default::default()
        }
    }

    /// Changes the group of the volume's files, unless the driver has done so.
    async fn apply_group(&self, mount: &Mount<'_>, target: &Path) -> Result<(), CsiError> {
        let Some(group) = mount.group else { return Ok(()) };
        if mount.capabilities.applies_group() || !mount.policy.applies_group(mount.volume) {
            return Ok(());
        }
        let context = pod::spec(mount.request.pod).security_context.as_ref();
        let always = context.and_then(|context| context.fs_group_change_policy.as_deref()) != Some("OnRootMismatch");
        let target = target.to_path_buf();
        // A large volume takes minutes.
        let work = tokio::task::spawn_blocking(move || ownership::apply_group(&target, group, always));
        let applied = match work.await {
            Ok(applied) => applied.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        applied.map_err(|text| {
            let text = format!("applyFSGroup failed for vol {}: {text}", mount.volume.id.handle);
            mount.failed(mount.publish_step(), text)
        })
    }

    /// Makes the published device visible where other tools look for it.
    fn map(&self, volume: &CsiVolume, uid: &str) -> io::Result<()> {
        let published = self.paths.device_publish(&volume.spec_name, uid);
        let map = self.paths.device_map(&volume.spec_name, uid);
        private::create_all(map.parent().unwrap_or(&map))?;
        if !is_mount_point(&map) {
            std::fs::OpenOptions::new().create(true).append(true).open(&map)?;
            bind(&published, &map).map_err(io::Error::other)?;
        }
        let link = self.paths.pod_device(uid, &volume.spec_name);
        private::create_all(link.parent().unwrap_or(&link))?;
        match std::os::unix::fs::symlink(&published, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn unmap(&self, spec_name: &str, uid: &str) -> io::Result<()> {
        let map = self.paths.device_map(spec_name, uid);
        unmount_all_at(&map).map_err(io::Error::other)?;
        missing_is_fine(std::fs::remove_file(map))?;
        missing_is_fine(std::fs::remove_file(self.paths.pod_device(uid, spec_name)))
    }

    /// Undoes [`Csi::publish`]. The caller holds the volume's lock.
    pub(super) async fn unpublish(
        &self,
        driver: &Driver,
        id: &VolumeId,
        known: &VolumeState,
        uid: &str,
    ) -> Result<(), String> {
        let (spec_name, block) = (known.name_for(uid), known.block);
        let target = match block {
            true => self.paths.device_publish(spec_name, uid),
            false => self.paths.publish(uid, spec_name),
        };
        if block {
            self.unmap(spec_name, uid).map_err(|error| error.to_string())?;
        }
        self.state.set_published(id, uid, Progress::Uncertain);
        let request = NodeUnpublishVolumeRequest {
            volume_id: id.handle.clone(),
            target_path: target.to_string_lossy().into_owned(),
        };
        let unpublished = driver.client.node_unpublish_volume(request).await;
        unpublished.map_err(|error| plugin_text(format!("Unmounter.TearDownAt failed: {error}")))?;
        self.remove_published(spec_name, block, uid).map_err(|error| {
            let text = format!("Unmounter.TearDownAt failed to clean mount dir [{}]: {error}", target.display());
            plugin_text(text)
        })?;
        self.state.set_published(id, uid, Progress::Not);
        Ok(())
    }

    /// Removes the target, which drivers should have done, and the record.
    fn remove_published(&self, spec_name: &str, block: bool, uid: &str) -> io::Result<()> {
        let target = match block {
            true => self.paths.device_publish(spec_name, uid),
            false => self.paths.publish(uid, spec_name),
        };
        // A driver that was asked to publish again may have mounted it twice.
        unmount_all_at(&target).map_err(io::Error::other)?;
        match std::fs::symlink_metadata(&target) {
            Ok(found) if found.is_dir() => std::fs::remove_dir(&target)?,
            Ok(_) => std::fs::remove_file(&target)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if block {
            return Ok(());
        }
        let directory = self.paths.pod_volume(uid, spec_name);
        Record::remove(&directory)?;
        missing_is_fine(std::fs::remove_dir(directory))
    }
}
