//! Removing Knarr from a machine: everything that it, its container runtime and its pods have left, and nothing else.
//!
//! In: where it lived. Out: a machine as before. Processes go first (`processes`), for they hold the rest; then mounts,
//! the network, cgroups (`cgroups`), what the runtime keeps outside the data directory (`runtime`), and the files.

mod cgroups;
mod mounts;
mod processes;
mod runtime;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use knarr_network::clean;

use crate::address::LONELY;
use crate::cluster::Cluster;

/// Where a node lived.
#[derive(Clone, Debug)]
pub struct Place {
    pub data: PathBuf,
    pub cgroup_root: String,
}

/// Ends all pods and their runtime, and removes everything but the files in the data directory. No Knarr may run on it.
pub async fn remove_node(place: &Place) -> anyhow::Result<()> {
    let pods = pods(&place.data);
    let outside = runtime::outside(&place.data);
    processes::end(|process| process.belongs(place, &pods)).context("processes cannot be ended")?;
    mounts::remove_below(&place.data)?;
    if place.data == Path::new("/var/lib/knarr") {
        mounts::remove_self_bind(Path::new("/var/lib/kubelet"))?;
    }
    let cluster = Cluster::load(&place.data).unwrap_or_default();
    let belongings = clean::CleanupScope {
        data_directory: place.data.join("network"),
        bridge: crate::commands::network::BRIDGE.to_owned(),
        addresses: cluster.dns.into_iter().chain([LONELY.into()]).collect(),
        pools: cluster.load_balancers,
    };
    clean::clean(&belongings).await.context("the network cannot be cleaned")?;
    cgroups::remove(place, &pods)?;
    runtime::remove(&outside)
}

/// Removes a folder and all that is in it. One that a file system is mounted at, or that a link leads to, is somebody's
/// choice of place: it is emptied and stays.
pub fn remove_files(folder: &Path) -> anyhow::Result<()> {
    if folder.is_symlink() || mounts::is_point(folder)? {
        return empty(folder);
    }
    remove(folder, std::fs::remove_dir_all(folder))
}

fn empty(folder: &Path) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        // The folder in which file systems keep what a check found is theirs.
        if path.ends_with("lost+found") {
            continue;
        }
        let is_folder = path.is_dir() && !path.is_symlink();
        let removed = if is_folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        remove(&path, removed)?;
    }
    Ok(())
}

/// What was gone already needs no removal.
fn remove(path: &Path, removed: std::io::Result<()>) -> anyhow::Result<()> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The uids of the pods that this node has folders of: for volumes, which not every pod has, or for logs, which are named
/// by namespace, name and uid.
fn pods(data: &Path) -> Vec<String> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(data.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let logs = names("logs").into_iter().filter_map(|name| name.rsplit_once('_').map(|(_, uid)| uid.to_owned()));
    let mut found: Vec<String> = names("kubelet/pods").into_iter().chain(names("kubelet/memory")).chain(logs).collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_known_by_any_folder() {
        let data = tempfile::tempdir().unwrap();
        for folder in ["kubelet/pods/1", "kubelet/memory/1", "kubelet/memory/2", "logs/default_a_1", "logs/b-c_d_3"] {
            std::fs::create_dir_all(data.path().join(folder)).unwrap();
        }
        assert_eq!(pods(data.path()), ["1", "2", "3"]);
    }

    #[test]
    fn folders_are_removed_and_chosen_places_emptied() {
        let data = tempfile::tempdir().unwrap();
        let (folder, link) = (data.path().join("folder"), data.path().join("link"));
        std::fs::create_dir_all(folder.join("a/b")).unwrap();
        std::fs::write(folder.join("c"), "c").unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        remove_files(&link).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        remove_files(&folder).unwrap();
        assert!(!folder.exists());
        remove_files(&folder).unwrap();
    }

    #[test]
    fn a_mount_point_is_emptied_and_stays_mounted() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let data = tempfile::tempdir().unwrap();
        let place = data.path().join("place");
        let below = place.join("kubelet/memory");
        let mount = |point: &Path| {
            std::fs::create_dir_all(point).unwrap();
            let options = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("tmpfs"), point, Some("tmpfs"), options, None::<&str>).unwrap();
        };
        mount(&place);
        mount(&below);
        std::fs::write(below.join("token"), "secret").unwrap();
        mounts::remove_below(&place).unwrap();
        remove_files(&place).unwrap();
        let left = std::fs::read_dir(&place).unwrap().count();
        let stays = mounts::is_point(&place).unwrap();
        nix::mount::umount2(&place, nix::mount::MntFlags::MNT_DETACH).unwrap();
        assert_eq!((left, stays), (0, true));
    }
}
