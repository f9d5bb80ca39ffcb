//! How cgroups are named and who manages them: the kubelet itself, or systemd.
//!
//! Both must be the same as the runtime's. With systemd, each cgroup is a slice whose name holds the names of its parents,
//! and systemd must know it: otherwise it would remove it or reset its limits.

use std::process::{Command, Stdio};

/// The cgroup driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    #[default]
    Cgroupfs,
    Systemd,
}

impl Driver {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "cgroupfs" => Some(Self::Cgroupfs),
            "systemd" => Some(Self::Systemd),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// The path of a cgroup by the names of its parents and its own.
    pub fn path(self, names: &[&str]) -> String {
        match self {
            Self::Cgroupfs => names.iter().map(|name| format!("/{name}")).collect(),
            Self::Systemd => {
                let mut slice = String::new();
                let mut path = String::new();
                for name in names {
                    if !slice.is_empty() {
                        slice.push('-');
                    }
                    // A dash separates parents in the names of slices.
                    slice.push_str(&name.replace('-', "_"));
                    path.push_str(&format!("/{slice}.slice"));
                }
                path
            }
        }
    }

    /// The uid of a pod by the name of its cgroup's directory.
    pub fn pod_of(self, directory: &str) -> Option<String> {
        match self {
            Self::Cgroupfs => directory.strip_prefix("pod").map(str::to_owned),
            Self::Systemd => {
                let own = directory.strip_suffix(".slice")?.rsplit('-').next()?;
                Some(own.strip_prefix("pod")?.replace('_', "-"))
            }
        }
    }

    /// The cgroup of a container below that of its pod, as the runtime names it.
    pub fn container(self, runtime: &str, id: &str) -> String {
        match (self, runtime) {
            (Self::Cgroupfs, "cri-o") => format!("crio-{id}"),
            (Self::Cgroupfs, _) => id.to_owned(),
            (Self::Systemd, "cri-o") => format!("crio-{id}.scope"),
            (Self::Systemd, _) => format!("cri-containerd-{id}.scope"),
        }
    }
}

/// A property of a slice, in the form of `busctl`: name, type and value.
type Property = (&'static str, &'static str, String);

/// The limits of a slice as systemd has them; what is none is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceLimits {
    pub cpu_shares: Option<i64>,
    /// Microseconds per 100 ms; zero is no limit.
    pub cpu_quota: Option<i64>,
    /// Bytes; zero is no limit.
    pub memory: Option<i64>,
    pub processes: Option<u64>,
}

impl SliceLimits {
    fn properties(&self, is_unified: bool) -> Vec<Property> {
        let limit = |value: i64, scale: u64| match u64::try_from(value) {
            Ok(value) if value > 0 => value.saturating_mul(scale).to_string(),
            _ => u64::MAX.to_string(),
        };
        let mut properties: Vec<Property> = Vec::new();
        if let Some(shares) = self.cpu_shares {
            properties.push(match is_unified {
                true => ("CPUWeight", "t", super::weight(shares).to_string()),
                false => ("CPUShares", "t", shares.to_string()),
            });
        }
        // A quota of a tenth of a second, ten times a second.
        properties.extend(self.cpu_quota.map(|quota| ("CPUQuotaPerSecUSec", "t", limit(quota, 10))));
        let memory = if is_unified { "MemoryMax" } else { "MemoryLimit" };
        properties.extend(self.memory.map(|bytes| (memory, "t", limit(bytes, 1))));
        properties.extend(self.processes.map(|count| ("TasksMax", "t", count.to_string())));
        properties
    }
}

/// The operation on a slice of systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Start,
    Update,
    Stop,
}

/// The name of a slice by the path of its cgroup.
fn unit(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The arguments of `busctl` for a change.
fn arguments(change: Change, path: &str, limits: &SliceLimits, is_unified: bool) -> Vec<String> {
    let manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
    let mut words: Vec<String> =
        ["--quiet", "--timeout=10", "call"].iter().chain(&manager).map(ToString::to_string).collect();
    let mut properties = limits.properties(is_unified);
    let (method, signature): (&str, &[&str]) = match change {
        Change::Start => {
            let own: [Property; 5] = [
                ("Description", "s", format!("libcontainer container {}", unit(path))),
                ("DefaultDependencies", "b", "false".to_owned()),
                ("CPUAccounting", "b", "true".to_owned()),
                ("MemoryAccounting", "b", "true".to_owned()),
                ("TasksAccounting", "b", "true".to_owned()),
            ];
            properties.splice(0..0, own);
            ("StartTransientUnit", &["ssa(sv)a(sa(sv))"])
        }
        Change::Update => ("SetUnitProperties", &["sba(sv)"]),
        Change::Stop => ("StopUnit", &["ss"]),
    };
    words.push(method.to_owned());
    words.extend(signature.iter().map(ToString::to_string));
    words.push(unit(path).to_owned());
    match change {
        Change::Start => words.push("replace".to_owned()),
        Change::Update => words.push("true".to_owned()),
        Change::Stop => {
            words.push("replace".to_owned());
            return words;
        }
    }
    words.push(properties.len().to_string());
    words.extend(properties.into_iter().flat_map(|(name, kind, value)| [name.to_owned(), kind.to_owned(), value]));
    if change == Change::Start {
        words.push("0".to_owned());
    }
    words
}

/// Starts a slice; one that exists is left as it is.
pub fn start(path: &str, is_unified: bool) -> Result<(), String> {
    match call(&arguments(Change::Start, path, &SliceLimits::default(), is_unified)) {
        Err(message) if message.contains("already exists") || message.contains("already loaded") => Ok(()),
        other => other,
    }
}

/// Sets limits of a slice.
pub fn update(path: &str, limits: &SliceLimits, is_unified: bool) -> Result<(), String> {
    call(&arguments(Change::Update, path, limits, is_unified))
}

/// Stops a slice; one that is gone is no error.
pub fn stop(path: &str) -> Result<(), String> {
    match call(&arguments(Change::Stop, path, &SliceLimits::default(), true)) {
        Err(message) if message.contains("not loaded") => Ok(()),
        other => other,
    }
}

/// Calls systemd through its own tool, as the rest of the kubelet does. The calls of a pod's cgroup are few.
fn call(arguments: &[String]) -> Result<(), String> {
    let run = || Command::new("busctl").args(arguments).stdin(Stdio::null()).output();
    let is_shared = tokio::runtime::Handle::try_current()
        .is_ok_and(|handle| handle.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread);
    let output = if is_shared { tokio::task::block_in_place(run) } else { run() };
    let output = output.map_err(|error| format!("cannot run busctl: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_are_named_as_the_runtime_expects() {
        let uid = "pod0b1e-22";
        for (names, cgroupfs, systemd) in [
            (vec!["kubepods"], "/kubepods", "/kubepods.slice"),
            (vec!["kubepods", "burstable"], "/kubepods/burstable", "/kubepods.slice/kubepods-burstable.slice"),
            (
                vec!["kubepods", "burstable", uid],
                "/kubepods/burstable/pod0b1e-22",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b1e_22.slice",
            ),
            (vec!["kubepods", uid], "/kubepods/pod0b1e-22", "/kubepods.slice/kubepods-pod0b1e_22.slice"),
            (
                vec!["a-b", "kubepods", "besteffort", uid],
                "/a-b/kubepods/besteffort/pod0b1e-22",
                "/a_b.slice/a_b-kubepods.slice/a_b-kubepods-besteffort.slice/a_b-kubepods-besteffort-pod0b1e_22.slice",
            ),
        ] {
            for (driver, expected) in [(Driver::Cgroupfs, cgroupfs), (Driver::Systemd, systemd)] {
                let path = driver.path(&names);
                assert_eq!(path, expected);
                let pod = driver.pod_of(unit(&path));
                assert_eq!(pod.as_deref(), names.contains(&uid).then_some("0b1e-22"), "{path}");
            }
        }
        assert_eq!(Driver::Systemd.container("containerd", "ab"), "cri-containerd-ab.scope");
        assert_eq!(Driver::Systemd.container("cri-o", "ab"), "crio-ab.scope");
        assert_eq!(Driver::Cgroupfs.container("containerd", "ab"), "ab");
        assert_eq!(Driver::Cgroupfs.container("cri-o", "ab"), "crio-ab");
    }

    #[test]
    fn systemd_is_called_with_the_slice_and_its_limits() {
        let path = "/kubepods.slice/kubepods-burstable.slice";
        let limits =
            SliceLimits { cpu_shares: Some(1024), cpu_quota: Some(50_000), memory: Some(0), processes: Some(9) };
        let manager = "--quiet --timeout=10 call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager";
        let shown = |change, is_unified| arguments(change, path, &limits, is_unified).join(" ");
        assert_eq!(
            shown(Change::Update, true),
            format!(
                "{manager} SetUnitProperties sba(sv) kubepods-burstable.slice true 4 CPUWeight t 39 \
                 CPUQuotaPerSecUSec t 500000 MemoryMax t 18446744073709551615 TasksMax t 9"
            )
        );
        assert!(
            shown(Change::Update, false).contains("CPUShares t 1024")
                && shown(Change::Update, false).contains("MemoryLimit")
        );
        assert_eq!(shown(Change::Stop, true), format!("{manager} StopUnit ss kubepods-burstable.slice replace"));
        let start = arguments(Change::Start, path, &SliceLimits::default(), true).join(" ");
        assert!(start.starts_with(&format!(
            "{manager} StartTransientUnit ssa(sv)a(sa(sv)) kubepods-burstable.slice replace 5 "
        )));
        assert!(start.ends_with(" TasksAccounting b true 0"), "{start}");
    }
}
