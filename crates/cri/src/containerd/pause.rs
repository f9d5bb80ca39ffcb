//! The pause image, whose process holds a pod's namespaces. It is embedded in this program so that no registry is needed.

use super::ImageArchive;

/// Its name in the runtime. The host `localhost` keeps the runtime from asking a registry for it.
pub const PAUSE_IMAGE: &str = "localhost/knarr/pause:1";

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// The pause image as an archive to import.
pub fn pause_archive() -> Vec<u8> {
    ImageArchive::new(PAUSE_IMAGE).entrypoint(&["/pause"]).user("65535:65535").file("pause", 0o755, PROGRAM).build()
}
