//! Carries out what the plan says.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeSpec, Pod};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

use super::names::VolumeId;
use super::plan::{Action, Observed};
use super::{BY_ID, Controller, messages, source, view};
use crate::common::key::{name, namespace, uid};
use crate::error::{Error, Result, ignore_not_found, is_already_there};

impl Controller {
    pub(super) async fn carry_out(&self, observed: &Observed, action: Action) -> Result<()> {
        match action {
            Action::Attach { node } => self.attach(observed, &node).await,
            Action::Detach { node, verify } => {
                let done = self.detach(&observed.id, &node, verify).await;
                if done.is_err() {
                    self.fail(&observed.id, &node);
                }
                done
            }
            Action::ReportAttached { node } => {
                for pod in observed.desired.get(&node).into_iter().flatten() {
                    let message = messages::attach_succeeded(&observed.name);
                    self.recorder.normal(&**pod, "SuccessfulAttachVolume", message);
                    record_step(pod, &observed.name);
                }
                self.node_queue.add(node);
                Ok(())
            }
            Action::ReportFailure { node, pod, message } => {
                let pods = observed.desired.get(&node).into_iter().flatten();
                if let Some(pod) = pods.into_iter().find(|own| (namespace(&***own), name(&***own)) == (&pod.0, &pod.1))
                {
                    self.recorder.warning(&**pod, "FailedAttachVolume", message);
                }
                Ok(())
            }
        }
    }

    async fn attach(&self, observed: &Observed, node: &str) -> Result<()> {
        let id = &observed.id;
        if id.is_disk() {
            self.state.lock().disks.attach(id, node);
            self.queue.add(id.clone());
            return Ok(());
        }
        let Some(source) = self.attachment_source(id) else { return Ok(()) };
        let attachment = id.attachment_name(node);
        let object = VolumeAttachment {
            metadata: ObjectMeta { name: Some(attachment.clone()), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec { attacher: id.driver.clone(), node_name: node.to_owned(), source },
            status: None,
        };
        self.state.lock().ids.insert(attachment.clone(), id.clone());
        let api: Api<VolumeAttachment> = Api::all(self.context.client.clone());
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => {
                let now = self.now();
                let mut state = self.state.lock();
                // The watch may have been faster.
                if self.attachments.get("", &attachment).is_none() {
                    state.created.insert(attachment, now);
                }
                Ok(())
            }
            // The cache will show it, and that event continues.
            Err(error) if is_already_there(&error) => Ok(()),
            Err(error) => {
                let message = messages::attach_failed(&observed.name, &crate::error::message(&error));
                for pod in observed.desired.get(node).into_iter().flatten() {
                    self.recorder.warning(&**pod, "FailedAttachVolume", message.clone());
                }
                self.fail(id, node);
                Err(error.into())
            }
        }
    }

    /// The PersistentVolume, or the specification of an inline volume; `None` when neither exists any more.
    fn attachment_source(&self, id: &VolumeId) -> Option<VolumeAttachmentSource> {
        if let Some(volume) = self.volumes.by_index(BY_ID, &id.unique_name()).first() {
            let persistent_volume_name = Some(name(&**volume).to_owned());
            return Some(VolumeAttachmentSource { persistent_volume_name, inline_volume_spec: None });
        }
        let pods = self.pods.by_index(super::PODS_BY_INLINE, &id.unique_name());
        let spec: Option<PersistentVolumeSpec> = pods.iter().find_map(|pod| {
            source::inline_volumes(pod).into_iter().find(|(other, _)| other == id).map(|(_, spec)| spec)
        });
        Some(VolumeAttachmentSource { persistent_volume_name: None, inline_volume_spec: Some(spec?) })
    }

    /// First removes the volume from the node's status, so that the kubelet no longer mounts it; then checks that it has not,
    /// and detaches.
    async fn detach(&self, id: &VolumeId, node: &str, verify: bool) -> Result<()> {
        if id.is_disk() {
            return self.detach_disk(id, node, verify).await;
        }
        let attachment = id.attachment_name(node);
        let Some(object) = self.attachments.get("", &attachment) else {
            return Err(Error::Later("the VolumeAttachment is not in the cache yet".to_owned()));
        };
        self.state.lock().releasing.insert(attachment.clone(), uid(&*object).to_owned());
        let released = self.release(id, node, verify, &object).await;
        if released.is_err() {
            self.state.lock().releasing.remove(&attachment);
            self.node_queue.add(node.to_owned());
        }
        released
    }

    async fn release(&self, id: &VolumeId, node: &str, verify: bool, object: &VolumeAttachment) -> Result<()> {
        self.revoke(id, node, verify).await?;
        let api: Api<VolumeAttachment> = Api::all(self.context.client.clone());
        let same = Preconditions { uid: Some(uid(object).to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        ignore_not_found(api.delete(name(object), &params).await)?;
        tracing::info!(volume = id.unique_name(), node, forced = !verify, "detaching a volume");
        Ok(())
    }

    /// Removes a volume that is being released from the node's `volumesAttached`, and checks that it is not mounted.
    pub(super) async fn revoke(&self, id: &VolumeId, node: &str, verify: bool) -> Result<()> {
        self.report_attached(node).await?;
        if verify {
            let nodes: Api<Node> = Api::all(self.context.client.clone());
            if nodes.get_opt(node).await?.is_some_and(|node| view::is_in_use(&node, id)) {
                return Err(Error::Later("volume is still in use by node, according to Node status".to_owned()));
            }
        }
        Ok(())
    }

    fn fail(&self, id: &VolumeId, node: &str) {
        let now = self.now();
        if let Some(memory) = self.state.lock().memory.get_mut(id).and_then(|nodes| nodes.get_mut(node)) {
            memory.fail(now);
        }
    }
}

fn record_step(pod: &Pod, volume: &str) {
    let object = format!("pods/{}/{}", namespace(pod), name(pod));
    tracing::info!(target: "journey", step = "attached", object, volume);
}
