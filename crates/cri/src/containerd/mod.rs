//! A containerd of our own: its configuration, its life beyond ours, and images brought to it as archives.

mod archive;
mod config;
mod folder;
mod image_mount;
mod import;
mod leases;
mod orphans;
mod pause;
mod pinned;
mod process;

pub use archive::ImageArchive;
pub use config::{ContainerdConfig, render};
pub use folder::load_folder;
pub use image_mount::{mount_image, unmount_image};
pub use import::{ImportError, import};
pub use pause::{PAUSE_IMAGE, pause_archive};
pub use process::{Containerd, StartError};

/// Where containerd keeps what came through CRI.
pub(crate) const NAMESPACE: &str = "k8s.io";
