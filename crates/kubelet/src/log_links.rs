//! Links to the logs of containers in one directory, named after pod, namespace and container: log collectors read them.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::pod;
use crate::settings::Settings;

/// File names are at most this long.
const MAX_NAME: usize = 255;

/// Links the log of a container that was created. A missing link is no reason not to start it.
pub fn create(settings: &Settings, pod: &Pod, container: &str, id: &str, attempt: u32) {
    let Some(directory) = &settings.log_links else { return };
    let logs = settings.log_directory(pod::namespace(pod), pod::name(pod), pod::uid(pod));
    let target = logs.join(container).join(format!("{attempt}.log"));
    if let Err(error) = link(directory, &name(pod, container, id), &target) {
        tracing::warn!(%error, pod = pod::title(pod), container, "cannot link the log of a container");
    }
}

fn link(directory: &Path, name: &str, target: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    match std::os::unix::fs::symlink(target, directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// `POD_NAMESPACE_CONTAINER-ID.log`, with the part before the suffix cut where it is too long.
fn name(pod: &Pod, container: &str, id: &str) -> String {
    let mut name = format!("{}_{}_{container}-{id}", pod::name(pod), pod::namespace(pod));
    name.truncate(MAX_NAME - ".log".len());
    name + ".log"
}

/// Removes the links whose logs are gone.
pub fn remove_dead(settings: &Settings) {
    let Some(directory) = &settings.log_links else { return };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_dead = |path: &PathBuf| path.is_symlink() && !path.exists();
    for path in entries.map(|entry| entry.path()).filter(is_dead) {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::debug!(%error, link = %path.display(), "cannot remove a dead link to a log");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn links_lead_to_logs_and_go_with_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut settings = Settings::new("n", directory.path(), "/x".into());
        settings.log_root = directory.path().join("pods");
        let links = directory.path().join("containers");
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "ns", "uid": "u" } }))
            .expect("a pod");
        create(&settings, &pod, "c", "0a1b", 2);
        assert!(!links.exists(), "only where it is asked for");
        settings.log_links = Some(links.clone());
        std::fs::create_dir_all(directory.path().join("pods/ns_p_u/c")).expect("made");
        std::fs::write(directory.path().join("pods/ns_p_u/c/2.log"), "line").expect("written");
        create(&settings, &pod, "c", "0a1b", 2);
        create(&settings, &pod, "c", "0a1b", 2);
        let link = links.join("p_ns_c-0a1b.log");
        assert_eq!(std::fs::read_to_string(&link).expect("a link"), "line");
        remove_dead(&settings);
        assert!(link.is_symlink());
        std::fs::remove_dir_all(directory.path().join("pods")).expect("removed");
        remove_dead(&settings);
        assert!(!link.is_symlink());
        let long = "x".repeat(300);
        assert_eq!(name(&pod, &long, "id").len(), MAX_NAME);
    }
}
