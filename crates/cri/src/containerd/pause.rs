//! The image of the process that holds a pod's namespaces, carried inside this program so that no registry is needed.

use super::ImageArchive;

/// Its name in the runtime. `localhost` says that no registry is to be asked for it.
pub const PAUSE_IMAGE: &str = "localhost/knarr/pause:1";

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

pub fn pause_archive() -> Vec<u8> {
    ImageArchive::new(PAUSE_IMAGE).entrypoint(&["/pause"]).user("65535:65535").file("pause", 0o755, PROGRAM).build()
}
