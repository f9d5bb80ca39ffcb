//! The containerd that a node starts for itself: its configuration and process, and image archives imported into it.

mod archive;
mod config;
mod image_directory;
mod image_mount;
mod import;
mod leases;
mod orphans;
mod pause;
mod pinned;
mod process;
mod registries;
mod snippets;

pub use archive::ImageArchive;
pub use config::{ContainerdConfig, Format, OLDEST_RELEASE, release, render};
pub use image_directory::import_directory;
pub use image_mount::{mount_image, unmount_image};
pub use import::{ImportError, import};
pub use orphans::sees;
pub use pause::{PAUSE_IMAGE, pause_archive};
pub use process::{Containerd, HealthChecks, StartError};
pub use registries::{HostLogin, Registries, RegistriesError};
pub use snippets::{Snippet, SnippetError, read_directory as read_snippets};
