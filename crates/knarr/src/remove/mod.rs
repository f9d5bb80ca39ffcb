//! Removes Knarr from a host: everything that it, its container runtime and its pods created, and nothing else.
//!
//! Processes are stopped first (`processes`), for they hold the rest; then mounts, the network, cgroups (`cgroups`), files
//! of the runtime outside the data directory (`runtime`), and the data directory.

mod cgroups;
mod mounts;
mod processes;
mod runtime;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use knarr_network::clean;

use crate::address::FALLBACK_ADDRESS;
use crate::cluster::Cluster;
use crate::paths;

/// The node to remove.
#[derive(Clone, Debug)]
pub struct NodeLocation {
    pub data: PathBuf,
    pub cgroup_root: String,
}

/// Stops all pods and their runtime, and removes everything except the data directory. Knarr must not be running.
pub async fn remove_node(location: &NodeLocation) -> anyhow::Result<()> {
    let pods = pods(&location.data);
    let outside = runtime::outside(&location.data);
    processes::kill_all(&location.data, |process| process.belongs(location, &pods))
        .context("cannot stop the node's processes")?;
    mounts::remove_below(&location.data)?;
    if paths::is_default(&location.data) {
        remove_outside()?;
    }
    let cluster = Cluster::load(&location.data).unwrap_or_default();
    let scope = clean::CleanupScope {
        data_directory: location.data.join("network"),
        bridge: paths::BRIDGE.to_owned(),
        addresses: cluster.dns.into_iter().chain([FALLBACK_ADDRESS.into()]).collect(),
        pools: cluster.load_balancers,
    };
    clean::clean(&scope).await.context("cannot clean up the network")?;
    cgroups::remove(location, &pods)?;
    runtime::remove(&outside)
}

/// Removes what a node with the default data directory has in the host's well-known directories. What CSI drivers have
/// there themselves stays.
fn remove_outside() -> anyhow::Result<()> {
    let root = Path::new(paths::DEFAULT_ROOT);
    let own = ["pods", "plugins/kubernetes.io"].map(|name| root.join(name));
    for directory in &own {
        mounts::remove_below(directory)?;
    }
    mounts::remove_self_bind(root)?;
    for directory in own.iter().map(PathBuf::as_path).chain([Path::new(paths::DEFAULT_LOGS)]) {
        remove_files(directory)?;
    }
    let links = std::fs::read_dir(paths::LOG_LINKS).into_iter().flatten().flatten().map(|entry| entry.path());
    for link in links.filter(|link| link.is_symlink() && !link.exists()) {
        remove(&link, std::fs::remove_file(&link))?;
    }
    Ok(())
}

/// Removes a directory and its content. A mount point or the target of a symlink was chosen by somebody: it is emptied
/// and stays. Nothing is removed while something is mounted below: it may be a volume, with the data of another host.
pub fn remove_files(directory: &Path) -> anyhow::Result<()> {
    if let Some(point) = mounts::first_below(directory)? {
        bail!("{} is still mounted: nothing in {} is removed", point.display(), directory.display());
    }
    if directory.is_symlink() || mounts::is_point(directory)? {
        return empty(directory);
    }
    remove(directory, std::fs::remove_dir_all(directory))
}

fn empty(directory: &Path) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", directory.display()))?.path();
        // `lost+found` belongs to the file system.
        if path.ends_with("lost+found") {
            continue;
        }
        let is_directory = path.is_dir() && !path.is_symlink();
        let removed = if is_directory { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        remove(&path, removed)?;
    }
    Ok(())
}

/// A missing file needs no removal.
fn remove(path: &Path, removed: std::io::Result<()>) -> anyhow::Result<()> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The UIDs of the node's pods, from their directories: of volumes, which not every pod has, or of logs, which are named
/// by namespace, name and UID.
fn pods(data: &Path) -> Vec<String> {
    let well_known = [paths::DEFAULT_ROOT, paths::DEFAULT_LOGS].map(PathBuf::from);
    let [root, own_logs] = if paths::is_default(data) { well_known } else { [data.join("kubelet"), data.join("logs")] };
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let logs = names(&own_logs).into_iter().chain(names(&data.join("logs")));
    let logs = logs.filter_map(|name| name.rsplit_once('_').map(|(_, uid)| uid.to_owned()));
    let volumes = [root.join("pods"), data.join("kubelet/pods"), data.join("kubelet/memory")];
    let mut found: Vec<String> = volumes.iter().flat_map(|directory| names(directory)).chain(logs).collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_found_by_any_directory() {
        let data = tempfile::tempdir().unwrap();
        for directory in ["kubelet/pods/1", "kubelet/memory/1", "kubelet/memory/2", "logs/default_a_1", "logs/b-c_d_3"]
        {
            std::fs::create_dir_all(data.path().join(directory)).unwrap();
        }
        assert_eq!(pods(data.path()), ["1", "2", "3"]);
    }

    #[test]
    fn directories_are_removed_and_chosen_places_emptied() {
        let data = tempfile::tempdir().unwrap();
        let (directory, link) = (data.path().join("directory"), data.path().join("link"));
        std::fs::create_dir_all(directory.join("a/b")).unwrap();
        std::fs::write(directory.join("c"), "c").unwrap();
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        remove_files(&link).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        remove_files(&directory).unwrap();
        assert!(!directory.exists());
        remove_files(&directory).unwrap();
    }

    #[test]
    fn nothing_is_removed_while_a_volume_is_mounted() {
        if !knarr_test_host::has(&["root"]) {
            return;
        }
        let data = tempfile::tempdir().unwrap();
        let (own, volume) = (data.path().join("own"), data.path().join("pods/1/volume"));
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::write(&own, "own").unwrap();
        let options = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &volume, Some("tmpfs"), options, None::<&str>).unwrap();
        std::fs::write(volume.join("data"), "data").unwrap();
        let refused = remove_files(data.path());
        let left = (volume.join("data").exists(), own.exists());
        nix::mount::umount2(&volume, nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert!(refused.unwrap_err().to_string().contains("is still mounted"));
        assert_eq!(left, (true, true));
    }

    #[test]
    fn a_mount_point_is_emptied_and_stays_mounted() {
        if !knarr_test_host::has(&["root"]) {
            return;
        }
        let data = tempfile::tempdir().unwrap();
        let location = data.path().join("location");
        let below = location.join("kubelet/memory");
        let mount = |point: &Path| {
            std::fs::create_dir_all(point).unwrap();
            let options = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("tmpfs"), point, Some("tmpfs"), options, None::<&str>).unwrap();
        };
        mount(&location);
        mount(&below);
        std::fs::write(below.join("token"), "secret").unwrap();
        mounts::remove_below(&location).unwrap();
        remove_files(&location).unwrap();
        let left = std::fs::read_dir(&location).unwrap().count();
        let stays = mounts::is_point(&location).unwrap();
        nix::mount::umount2(&location, nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert_eq!((left, stays), (0, true));
    }
}
