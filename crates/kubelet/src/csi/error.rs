//! Why a CSI volume cannot be used yet, worded as Kubernetes' events.

use knarr_csi::{CallError, Code};

/// The step that failed, for the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    WaitForAttach,
    MountDevice,
    SetUp,
    Expand,
    SetUpDevice,
    MapPodDevice,
    ExpandDevice,
}

impl Step {
    fn failed(self) -> &'static str {
        match self {
            Self::WaitForAttach => "MountVolume.WaitForAttach failed",
            Self::MountDevice => "MountVolume.MountDevice failed",
            Self::SetUp => "MountVolume.SetUp failed",
            Self::Expand => "MountVolume.Setup failed while expanding volume",
            Self::SetUpDevice => "MapVolume.SetUpDevice failed",
            Self::MapPodDevice => "MapVolume.MapPodDevice failed",
            Self::ExpandDevice => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
        }
    }

    fn is_of_device(self) -> bool {
        matches!(self, Self::SetUpDevice | Self::MapPodDevice | Self::ExpandDevice)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct CsiError {
    pub step: Step,
    /// The name of the persistent volume, or of the pod's inline volume.
    pub spec_name: String,
    pub text: String,
    /// Nothing failed: the control plane or the driver is still to do its part, and the pod's worker is notified then.
    pub waits: bool,
    /// It waits because the node has as many volumes as the driver can attach.
    pub limit_exceeded: bool,
}

impl CsiError {
    pub fn event_message(&self) -> String {
        format!("{} for volume \"{}\" : {}", self.step.failed(), self.spec_name, self.text)
    }

    pub fn event_reason(&self) -> &'static str {
        if self.step.is_of_device() { "FailedMapVolume" } else { "FailedMount" }
    }
}

/// Whether the driver has certainly not done what it was asked, and is not doing it. An error that this side of the
/// connection found, such as a driver that was killed during the call, says nothing about what the driver did.
pub fn is_final(error: &CallError) -> bool {
    match error {
        CallError::Refused { status, .. } if std::error::Error::source(status.as_ref()).is_some() => false,
        other => other.is_final() && other.code() != Code::ResourceExhausted,
    }
}

/// An error, worded as by the CSI plugin.
pub fn plugin_text(text: impl std::fmt::Display) -> String {
    format!("kubernetes.io/csi: {text}")
}
