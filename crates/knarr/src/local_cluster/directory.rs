//! The directories of clusters, which only their owner can change.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, ensure};

/// Creates a directory for its owner alone, if it does not exist.
pub fn create_private(directory: &Path) -> anyhow::Result<()> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    created.with_context(|| format!("cannot create {}: are you root?", directory.display()))?;
    check_own(directory)
}

/// Refuses a directory that others can change: its files say what is started as this user.
pub fn check_own(directory: &Path) -> anyhow::Result<()> {
    let metadata = std::fs::metadata(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let is_own = metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    ensure!(is_own, "{} can be changed by other users", directory.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_cluster::Clusters;
    use std::os::unix::fs::PermissionsExt as _;

    /// Who can write `cluster.json` chooses the flags of a server that runs as root.
    #[test]
    fn a_directory_of_clusters_that_others_can_change_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("clusters");
        let clusters = Clusters::new(directory.clone(), parent.path().join("config"));
        let own = clusters.directory_of("dev");
        create_private(&own).unwrap();
        let spec = r#"{"name": "dev", "nodes": 1, "network": 1, "isOffline": true}"#;
        std::fs::write(own.join("cluster.json"), spec).unwrap();
        assert_eq!(clusters.read("dev").unwrap().nodes, 1);
        let mode = |directory: &Path| std::fs::metadata(directory).unwrap().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&own)), (0o700, 0o700));
        for directory in [directory, own.clone()] {
            for wrong in [0o777, 0o770] {
                std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(wrong)).unwrap();
                let refused = clusters.read("dev").unwrap_err().to_string();
                assert!(refused.contains("can be changed by other users"), "{refused}");
                assert!(create_private(&directory).is_err());
            }
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(65534), None).unwrap();
            assert!(clusters.read("dev").is_err() && clusters.list().is_err());
        }
        assert!(clusters.read("absent").unwrap_err().to_string().contains("there is no cluster"));
    }
}
