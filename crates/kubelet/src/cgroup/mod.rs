//! The cgroups of pods: one a service class, one a pod below it, in the old hierarchies or in the unified one.

pub mod amounts;
mod details;
pub mod pressure;
pub mod qos;
mod usage;

pub use details::{Details, DeviceTraffic};
pub use usage::Usage;

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::container::resources::{cpu_quota, cpu_shares};
use crate::pod;
use amounts::pod_amounts;
use pressure::Waits;
use qos::{QosClass, qos_class};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup hierarchy is mounted")]
    NotMounted,
    #[error("{path} could not be written")]
    Write { path: PathBuf, source: io::Error },
}

#[derive(Clone, Debug)]
enum Hierarchy {
    /// Version 1: each controller with its own mount.
    Separate(Vec<(String, PathBuf)>),
    /// Version 2.
    Unified(PathBuf),
}

#[derive(Clone, Debug)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    /// Ends with `kubepods` and begins with a slash.
    root: String,
    pids_limit: Option<u64>,
}

/// Controllers of version 1 in which pods get limits; the runtime makes its own folders in the others.
const LIMITED: [&str; 3] = ["cpu", "memory", "pids"];

impl Cgroups {
    pub fn discover(cgroup_root: &str, pids_limit: Option<u64>) -> Result<Self, CgroupError> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")
            .map_err(|source| CgroupError::Write { path: "/proc/self/mountinfo".into(), source })?;
        let hierarchy = parse_mounts(&mounts).ok_or(CgroupError::NotMounted)?;
        let root = format!("{}/kubepods", cgroup_root.trim_end_matches('/'));
        let root = if root.starts_with('/') { root } else { format!("/{root}") };
        Ok(Self { hierarchy, root, pids_limit })
    }

    pub fn is_unified(&self) -> bool {
        matches!(self.hierarchy, Hierarchy::Unified(_))
    }

    pub fn class_path(&self, class: QosClass) -> String {
        match class {
            QosClass::Guaranteed => self.root.clone(),
            QosClass::Burstable => format!("{}/burstable", self.root),
            QosClass::BestEffort => format!("{}/besteffort", self.root),
        }
    }

    /// Below which the runtime hangs the containers of the pod.
    pub fn pod_path(&self, pod: &Pod) -> String {
        format!("{}/pod{}", self.class_path(qos_class(pod)), pod::uid(pod))
    }

    /// Makes the folders all pods live under, and gives the pods together what the node can spare.
    pub fn prepare(&self, allocatable_cpu: i64, memory: i64) -> Result<(), CgroupError> {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            self.create(&self.class_path(class))?;
        }
        self.set_cpu_shares(&self.root, cpu_shares(allocatable_cpu))?;
        self.set_memory_limit(&self.root, memory)?;
        self.set_cpu_shares(&self.class_path(QosClass::BestEffort), cpu_shares(0))
    }

    /// Burstable pods together weigh as much as they request together.
    pub fn weigh_burstable(&self, requested_milli: i64) -> Result<(), CgroupError> {
        self.set_cpu_shares(&self.class_path(QosClass::Burstable), cpu_shares(requested_milli))
    }

    /// Makes the pod's cgroup or brings its limits up to date.
    pub fn ensure(&self, pod: &Pod) -> Result<(), CgroupError> {
        let path = self.pod_path(pod);
        self.create(&path)?;
        let amounts = pod_amounts(pod);
        let class = qos_class(pod);
        let shares = if class == QosClass::BestEffort { cpu_shares(0) } else { cpu_shares(amounts.cpu_request) };
        self.set_cpu_shares(&path, shares)?;
        self.set_cpu_quota(&path, cpu_quota(amounts.cpu_limit.unwrap_or(0)))?;
        self.set_memory_limit(&path, amounts.memory_limit.unwrap_or(0))?;
        if let Some(limit) = self.pids_limit {
            self.write(&path, "pids", "pids.max", "pids.max", &limit.to_string())?;
        }
        Ok(())
    }

    /// Gives the pod's cgroup the larger of what two forms of the pod need.
    pub fn widen(&self, old: &Pod, new: &Pod) -> Result<(), CgroupError> {
        let path = self.pod_path(new);
        let (old, new) = (pod_amounts(old), pod_amounts(new));
        let larger = |left: Option<i64>, right: Option<i64>| left.zip(right).map_or(0, |(left, right)| left.max(right));
        self.set_cpu_shares(&path, cpu_shares(old.cpu_request.max(new.cpu_request)))?;
        self.set_cpu_quota(&path, cpu_quota(larger(old.cpu_limit, new.cpu_limit)))?;
        self.set_memory_limit(&path, larger(old.memory_limit, new.memory_limit))
    }

    /// Removes the pod's cgroup with all below it, of whichever class it was, and ends what still runs there. What is still
    /// in use stays for the next try. Only to be called when all containers of the pod have ended.
    pub fn remove(&self, uid: &str) -> Result<(), CgroupError> {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let path = format!("{}/pod{uid}", self.class_path(class));
            for folder in self.folders(&path) {
                kill_all(&folder);
                remove_tree(&folder).map_err(|source| CgroupError::Write { path: folder.clone(), source })?;
            }
        }
        Ok(())
    }

    /// The uids of pods that have a cgroup, for the search for what was left behind.
    pub fn pods(&self) -> Vec<String> {
        let mut found = std::collections::BTreeSet::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            for folder in self.folders(&self.class_path(class)) {
                let Ok(entries) = std::fs::read_dir(folder) else { continue };
                for entry in entries.flatten() {
                    if let Some(uid) = entry.file_name().to_string_lossy().strip_prefix("pod") {
                        found.insert(uid.to_string());
                    }
                }
            }
        }
        found.into_iter().collect()
    }

    pub fn usage(&self, path: &str) -> Usage {
        match &self.hierarchy {
            Hierarchy::Unified(mount) => usage::unified(&join(mount, path)),
            Hierarchy::Separate(_) => usage::separate(|controller| Some(join(self.mount_of(controller)?, path))),
        }
    }

    /// All else the kernel counts for a cgroup.
    pub fn details(&self, path: &str) -> Details {
        match &self.hierarchy {
            Hierarchy::Unified(mount) => details::unified(&join(mount, path)),
            Hierarchy::Separate(_) => details::separate(|controller| self.mount_of(controller).map(|m| join(m, path))),
        }
    }

    /// How long the processes of a cgroup waited. The old hierarchies don't tell, except for the machine as a whole.
    pub fn waits(&self, path: &str) -> Waits {
        match &self.hierarchy {
            _ if path == "/" => pressure::host(),
            Hierarchy::Unified(mount) => pressure::unified(&join(mount, path)),
            Hierarchy::Separate(_) => Waits::default(),
        }
    }

    /// The processes of a cgroup and of those below it.
    pub fn processes(&self, path: &str) -> Vec<i32> {
        let mount = match &self.hierarchy {
            Hierarchy::Unified(mount) => Some(mount.as_path()),
            Hierarchy::Separate(_) => self.mount_of("pids").or_else(|| self.mount_of("memory")),
        };
        let mut found = Vec::new();
        let mut open: Vec<PathBuf> = mount.map(|mount| join(mount, path)).into_iter().collect();
        while let Some(folder) = open.pop() {
            let listed = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            found.extend(listed.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            open.extend(entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
        }
        found
    }

    pub fn pods_path(&self) -> &str {
        &self.root
    }

    /// All pods together, and those of each class that has a folder of its own.
    pub fn class_paths(&self) -> [String; 3] {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(|class| self.class_path(class))
    }

    pub fn pod_usage(&self, pod: &Pod) -> Usage {
        self.usage(&self.pod_path(pod))
    }

    pub fn pods_usage(&self) -> Usage {
        self.usage(&self.root)
    }

    fn create(&self, path: &str) -> Result<(), CgroupError> {
        match &self.hierarchy {
            Hierarchy::Separate(_) => {
                for controller in LIMITED {
                    let Some(mount) = self.mount_of(controller) else { continue };
                    let folder = join(mount, path);
                    std::fs::create_dir_all(&folder).map_err(|source| CgroupError::Write { path: folder, source })?;
                }
                Ok(())
            }
            Hierarchy::Unified(mount) => {
                let mut folder = mount.clone();
                delegate(&folder);
                for part in Path::new(path).iter().skip(1) {
                    folder.push(part);
                    std::fs::create_dir_all(&folder)
                        .map_err(|source| CgroupError::Write { path: folder.clone(), source })?;
                    delegate(&folder);
                }
                Ok(())
            }
        }
    }

    fn set_cpu_shares(&self, path: &str, shares: i64) -> Result<(), CgroupError> {
        let value = if self.is_unified() { weight(shares) } else { shares };
        self.write(path, "cpu", "cpu.shares", "cpu.weight", &value.to_string())
    }

    fn set_cpu_quota(&self, path: &str, quota: i64) -> Result<(), CgroupError> {
        if self.is_unified() {
            let value = if quota > 0 { format!("{quota} 100000") } else { "max 100000".to_string() };
            return self.write(path, "cpu", "", "cpu.max", &value);
        }
        let value = if quota > 0 { quota } else { -1 };
        self.write(path, "cpu", "cpu.cfs_quota_us", "", &value.to_string())
    }

    fn set_memory_limit(&self, path: &str, bytes: i64) -> Result<(), CgroupError> {
        let value = match (bytes > 0, self.is_unified()) {
            (true, _) => bytes.to_string(),
            (false, true) => "max".to_string(),
            (false, false) => "-1".to_string(),
        };
        self.write(path, "memory", "memory.limit_in_bytes", "memory.max", &value)
    }

    /// A kernel without the controller has nothing to limit with, which is no reason to run no pods.
    fn write(&self, path: &str, controller: &str, old: &str, new: &str, value: &str) -> Result<(), CgroupError> {
        let file = match &self.hierarchy {
            Hierarchy::Unified(mount) => join(mount, path).join(new),
            Hierarchy::Separate(_) => match self.mount_of(controller) {
                Some(mount) => join(mount, path).join(old),
                None => return Ok(()),
            },
        };
        match std::fs::write(&file, value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(CgroupError::Write { path: file, source }),
            Ok(()) => Ok(()),
        }
    }

    fn mount_of(&self, controller: &str) -> Option<&Path> {
        match &self.hierarchy {
            Hierarchy::Unified(mount) => Some(mount),
            Hierarchy::Separate(mounts) => {
                mounts.iter().find(|(name, _)| name == controller).map(|(_, mount)| mount.as_path())
            }
        }
    }

    fn folders(&self, path: &str) -> Vec<PathBuf> {
        let mounts: Vec<&Path> = match &self.hierarchy {
            Hierarchy::Unified(mount) => vec![mount],
            Hierarchy::Separate(mounts) => mounts.iter().map(|(_, mount)| mount.as_path()).collect(),
        };
        let mut folders: Vec<PathBuf> = mounts.into_iter().map(|mount| join(mount, path)).collect();
        folders.sort();
        folders.dedup();
        folders.retain(|folder| folder.is_dir());
        folders
    }
}

fn join(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

/// Shares of 2 to 262144 laid over weights of 1 to 10000.
fn weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// Lets the folders below use the controllers there are; a folder that holds processes can't, and needs no more.
fn delegate(folder: &Path) {
    let Ok(available) = std::fs::read_to_string(folder.join("cgroup.controllers")) else { return };
    let enabled = std::fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
    for controller in available.split_whitespace() {
        if !enabled.split_whitespace().any(|known| known == controller)
            && let Err(error) = std::fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"))
        {
            tracing::debug!(folder = %folder.display(), controller, %error, "a cgroup controller can't be handed down");
        }
    }
}

/// Ends what still runs in a cgroup whose pod is over: processes of a runtime that was killed while it made a sandbox belong
/// to no container anyone could stop.
fn kill_all(folder: &Path) {
    let processes = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter_map(|line| line.trim().parse().ok()).filter(|process| *process > 1) {
        tracing::warn!(process, cgroup = %folder.display(), "a process outlived its pod and is killed");
        // One that has ended meanwhile is what we want.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), nix::sys::signal::Signal::SIGKILL);
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            kill_all(&entry.path());
        }
    }
}

fn remove_tree(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The fields after the dash are type, source and options; the fifth of all is the mount point.
fn parse_mounts(mountinfo: &str) -> Option<Hierarchy> {
    let mut separate = Vec::new();
    let mut unified = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        match right.next() {
            Some("cgroup") => {
                for option in right.nth(1).unwrap_or_default().split(',') {
                    separate.push((option.to_string(), PathBuf::from(point)));
                }
            }
            Some("cgroup2") => unified = Some(PathBuf::from(point)),
            _ => {}
        }
    }
    // Where both exist the old ones have the controllers, and the new one is there for systemd alone.
    separate.retain(|(name, _)| name != "rw" && name != "ro");
    if separate.iter().any(|(name, _)| name == "memory" || name == "cpu") {
        // The runtime makes folders there all the same, which must go with the pod.
        separate.extend(unified.map(|mount| ("unified".to_string(), mount)));
        return Some(Hierarchy::Separate(separate));
    }
    unified.map(Hierarchy::Unified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_hierarchy_are_found() {
        let hybrid = "30 24 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                      31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        match parse_mounts(hybrid) {
            Some(Hierarchy::Separate(mounts)) => {
                let names: Vec<_> = mounts.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, ["cpu", "cpuacct", "unified"]);
            }
            other => panic!("{other:?}"),
        }
        let unified = "30 24 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
        assert!(matches!(parse_mounts(unified), Some(Hierarchy::Unified(path)) if path == Path::new("/sys/fs/cgroup")));
    }

    #[test]
    fn shares_become_weights() {
        assert_eq!([2, 1024, 262_144].map(weight), [1, 39, 10_000]);
    }
}
