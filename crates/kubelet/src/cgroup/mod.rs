//! The cgroups of pods: one per QoS class and below it one per pod, in cgroup v1 or v2.

pub mod amounts;
pub mod cpu;
mod details;
pub mod driver;
mod hierarchy;
pub mod pressure;
pub mod qos;
mod usage;

pub use details::{Details, DeviceTraffic};
pub use usage::Usage;

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::pod;
use amounts::pod_amounts;
use cpu::{cpu_quota, cpu_shares};
use driver::{Driver, SliceLimits};
use hierarchy::{Hierarchy, cgroup_of_process, delegate, join, kill_all, parse_mounts, remove_tree, weight};
use pressure::PressureStats;
use qos::{QosClass, qos_class};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup hierarchy is mounted")]
    NotMounted,
    #[error("{path} could not be written")]
    Write { path: PathBuf, source: io::Error },
    #[error("systemd did not change {path}: {reason}")]
    Systemd { path: String, reason: String },
}

#[derive(Clone, Debug)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    driver: Driver,
    /// The names of the cgroup of all pods and of its parents; the last is `kubepods`.
    names: Vec<String>,
    pids_limit: Option<u64>,
}

/// Controllers of version 1 in which pods get limits; the runtime creates its own directories in the others.
const LIMITED: [&str; 3] = ["cpu", "memory", "pids"];

impl Cgroups {
    pub fn discover(cgroup_root: &str, driver: Driver, pids_limit: Option<u64>) -> Result<Self, CgroupError> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")
            .map_err(|source| CgroupError::Write { path: "/proc/self/mountinfo".into(), source })?;
        let hierarchy = parse_mounts(&mounts).ok_or(CgroupError::NotMounted)?;
        let parents = cgroup_root.split('/').filter(|name| !name.is_empty());
        let names = parents.chain(["kubepods"]).map(str::to_owned).collect();
        Ok(Self { hierarchy, driver, names, pids_limit })
    }

    pub fn is_unified(&self) -> bool {
        matches!(self.hierarchy, Hierarchy::Unified(_))
    }

    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Whether the kernel limits swap per cgroup.
    pub fn limits_swap(&self) -> bool {
        match &self.hierarchy {
            Hierarchy::Unified(mount) => join(mount, &self.pods_path()).join("memory.swap.max").exists(),
            Hierarchy::Separate(_) => false,
        }
    }

    /// The path of the cgroup with these names below that of all pods.
    fn below(&self, more: &[&str]) -> String {
        let names: Vec<&str> = self.names.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.driver.path(&names)
    }

    pub fn class_path(&self, class: QosClass) -> String {
        match class.cgroup() {
            Some(name) => self.below(&[name]),
            None => self.below(&[]),
        }
    }

    /// The cgroup below which the runtime puts the pod's containers.
    pub fn pod_path(&self, pod: &Pod) -> String {
        self.path_of(qos_class(pod), pod::uid(pod))
    }

    fn path_of(&self, class: QosClass, uid: &str) -> String {
        let own = format!("pod{uid}");
        match class.cgroup() {
            Some(name) => self.below(&[name, &own]),
            None => self.below(&[&own]),
        }
    }

    /// Creates the cgroups of all QoS classes and limits all pods together to the allocatable resources.
    pub fn prepare(&self, allocatable_cpu: i64, memory: i64) -> Result<(), CgroupError> {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            self.create(&self.class_path(class))?;
        }
        let root = self.pods_path();
        self.apply(
            &root,
            SliceLimits { cpu_shares: Some(cpu_shares(allocatable_cpu)), memory: Some(memory), ..Default::default() },
        )?;
        let shares = SliceLimits { cpu_shares: Some(cpu_shares(0)), ..Default::default() };
        self.apply(&self.class_path(QosClass::BestEffort), shares)
    }

    /// Sets the CPU weight of the burstable class to the sum of its pods' requests.
    pub fn set_burstable_weight(&self, requested_milli: i64) -> Result<(), CgroupError> {
        let shares = SliceLimits { cpu_shares: Some(cpu_shares(requested_milli)), ..Default::default() };
        self.apply(&self.class_path(QosClass::Burstable), shares)
    }

    /// Creates the pod's cgroup or updates its limits.
    pub fn ensure(&self, pod: &Pod) -> Result<(), CgroupError> {
        let path = self.pod_path(pod);
        self.create(&path)?;
        let amounts = pod_amounts(pod);
        let class = qos_class(pod);
        let shares = if class == QosClass::BestEffort { cpu_shares(0) } else { cpu_shares(amounts.cpu_request) };
        self.apply(
            &path,
            SliceLimits {
                cpu_shares: Some(shares),
                cpu_quota: Some(cpu_quota(amounts.cpu_limit.unwrap_or(0))),
                memory: Some(amounts.memory_limit.unwrap_or(0)),
                processes: self.pids_limit,
            },
        )
    }

    /// Sets the pod's cgroup to the larger limits of two versions of the pod.
    pub fn widen(&self, old: &Pod, new: &Pod) -> Result<(), CgroupError> {
        let path = self.pod_path(new);
        let (old, new) = (pod_amounts(old), pod_amounts(new));
        let larger = |left: Option<i64>, right: Option<i64>| left.zip(right).map_or(0, |(left, right)| left.max(right));
        self.apply(
            &path,
            SliceLimits {
                cpu_shares: Some(cpu_shares(old.cpu_request.max(new.cpu_request))),
                cpu_quota: Some(cpu_quota(larger(old.cpu_limit, new.cpu_limit))),
                memory: Some(larger(old.memory_limit, new.memory_limit)),
                processes: None,
            },
        )
    }

    /// Sets limits of a cgroup. systemd gets them first: it would reset what it does not know.
    fn apply(&self, path: &str, limits: SliceLimits) -> Result<(), CgroupError> {
        if self.driver == Driver::Systemd {
            driver::update(path, &limits, self.is_unified())
                .map_err(|reason| CgroupError::Systemd { path: path.to_owned(), reason })?;
        }
        if let Some(shares) = limits.cpu_shares {
            self.set_cpu_shares(path, shares)?;
        }
        if let Some(quota) = limits.cpu_quota {
            self.set_cpu_quota(path, quota)?;
        }
        if let Some(bytes) = limits.memory {
            self.set_memory_limit(path, bytes)?;
        }
        match limits.processes {
            Some(count) => self.write(path, "pids", "pids.max", "pids.max", &count.to_string()),
            None => Ok(()),
        }
    }

    /// Removes the pod's cgroup in any class, with all below it, and kills its remaining processes. Fails while it is
    /// in use; the caller retries. Call only when all containers of the pod have terminated.
    pub fn remove(&self, uid: &str) -> Result<(), CgroupError> {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let path = self.path_of(class, uid);
            let exists = !self.directories(&path).is_empty();
            if exists && self.driver == Driver::Systemd {
                driver::stop(&path).map_err(|reason| CgroupError::Systemd { path: path.clone(), reason })?;
            }
            for directory in self.directories(&path) {
                kill_all(&directory);
                remove_tree(&directory).map_err(|source| CgroupError::Write { path: directory.clone(), source })?;
            }
        }
        Ok(())
    }

    /// The uids of pods that have a cgroup, to find orphans.
    pub fn pods(&self) -> Vec<String> {
        let mut found = std::collections::BTreeSet::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            for directory in self.directories(&self.class_path(class)) {
                let Ok(entries) = std::fs::read_dir(directory) else { continue };
                for entry in entries.flatten() {
                    found.extend(self.driver.pod_of(&entry.file_name().to_string_lossy()));
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

    /// Detailed statistics of a cgroup.
    pub fn details(&self, path: &str) -> Details {
        match &self.hierarchy {
            Hierarchy::Unified(mount) => details::unified(&join(mount, path)),
            Hierarchy::Separate(_) => details::separate(|controller| self.mount_of(controller).map(|m| join(m, path))),
        }
    }

    /// Pressure stall information of a cgroup. Version 1 has it only for the whole host.
    pub fn waits(&self, path: &str) -> PressureStats {
        match &self.hierarchy {
            _ if path == "/" => pressure::host(),
            Hierarchy::Unified(mount) => pressure::unified(&join(mount, path)),
            Hierarchy::Separate(_) => PressureStats::default(),
        }
    }

    /// The processes of a cgroup and of its descendants.
    pub fn processes(&self, path: &str) -> Vec<i32> {
        let mount = match &self.hierarchy {
            Hierarchy::Unified(mount) => Some(mount.as_path()),
            Hierarchy::Separate(_) => self.mount_of("pids").or_else(|| self.mount_of("memory")),
        };
        let mut found = Vec::new();
        let mut open: Vec<PathBuf> = mount.map(|mount| join(mount, path)).into_iter().collect();
        while let Some(directory) = open.pop() {
            let listed = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            found.extend(listed.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
            let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            open.extend(entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
        }
        found
    }

    pub fn exists(&self, path: &str) -> bool {
        !self.directories(path).is_empty()
    }

    /// The cgroup that this process is in.
    pub fn own_path(&self) -> Option<String> {
        cgroup_of_process(&std::fs::read_to_string("/proc/self/cgroup").ok()?, self.is_unified())
    }

    pub fn pods_path(&self) -> String {
        self.below(&[])
    }

    /// The cgroups of all pods together and of each QoS class.
    pub fn class_paths(&self) -> [String; 3] {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(|class| self.class_path(class))
    }

    pub fn pod_usage(&self, pod: &Pod) -> Usage {
        self.usage(&self.pod_path(pod))
    }

    pub fn pods_usage(&self) -> Usage {
        self.usage(&self.pods_path())
    }

    fn create(&self, path: &str) -> Result<(), CgroupError> {
        if self.driver == Driver::Systemd && self.directories(path).is_empty() {
            driver::start(path, self.is_unified())
                .map_err(|reason| CgroupError::Systemd { path: path.to_owned(), reason })?;
        }
        match &self.hierarchy {
            Hierarchy::Separate(_) => {
                for controller in LIMITED {
                    let Some(mount) = self.mount_of(controller) else { continue };
                    let directory = join(mount, path);
                    std::fs::create_dir_all(&directory)
                        .map_err(|source| CgroupError::Write { path: directory, source })?;
                }
                Ok(())
            }
            Hierarchy::Unified(mount) => {
                let mut directory = mount.clone();
                delegate(&directory);
                for part in Path::new(path).iter().skip(1) {
                    directory.push(part);
                    std::fs::create_dir_all(&directory)
                        .map_err(|source| CgroupError::Write { path: directory.clone(), source })?;
                    delegate(&directory);
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

    /// Ignores a missing controller: pods run without that limit.
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

    fn directories(&self, path: &str) -> Vec<PathBuf> {
        let mounts: Vec<&Path> = match &self.hierarchy {
            Hierarchy::Unified(mount) => vec![mount],
            Hierarchy::Separate(mounts) => mounts.iter().map(|(_, mount)| mount.as_path()).collect(),
        };
        let mut directories: Vec<PathBuf> = mounts.into_iter().map(|mount| join(mount, path)).collect();
        directories.sort();
        directories.dedup();
        directories.retain(|directory| directory.is_dir());
        directories
    }
}
