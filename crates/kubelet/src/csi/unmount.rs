//! Unmounts the CSI volumes of a pod whose containers have terminated.

use super::Csi;
use super::drivers::Drivers;
use super::error::plugin_text;
use super::state::{Condition, Progress};
use super::volume::VolumeId;
use crate::objects::Notify;

impl Csi {
    /// Unpublishes all CSI volumes of the pod. Volumes that no other pod uses are unstaged after that, by
    /// [`Csi::unstage_unused`]. Call it again until it succeeds; `notify` is called when it is worth to do so.
    pub async fn unmount_pod(&self, uid: &str, notify: Option<Notify>) -> Result<(), String> {
        self.reconstruct_pod(uid);
        let volumes = self.state.volumes_of(uid);
        let unmounts = volumes.iter().map(|id| self.unmount_volume(id, uid, notify.as_ref()));
        let outcomes = futures::future::join_all(unmounts).await;
        let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }

    async fn unmount_volume(&self, id: &VolumeId, uid: &str, notify: Option<&Notify>) -> Result<(), String> {
        let _operation = self.state.lock(id).await;
        let Some(known) = self.state.get(id) else { return Ok(()) };
        if self.state.published(id, uid) != Progress::Not {
            let failed =
                |text: String| format!("UnmountVolume.TearDown failed for volume \"{}\" : {text}", known.name_for(uid));
            let Some(driver) = self.drivers.get(&id.driver) else {
                if let Some(notify) = notify {
                    self.state.wait_for(Condition::Driver(id.driver.clone()), notify.clone());
                }
                let missing = Drivers::missing(&id.driver);
                let text = plugin_text(format!("Unmounter.TearDownAt failed to get CSI client: {missing}"));
                return Err(failed(text));
            };
            self.unpublish(&driver, id, &known, uid).await.map_err(failed)?;
        }
        if self.state.remove_user(id, uid) {
            self.state.forget(id);
            self.unused.notify_one();
            self.in_use_changed.notify_one();
        }
        Ok(())
    }
}
