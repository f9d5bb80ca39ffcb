//! What the kernel lets this process do: containerd is configured by it, and what it reports depends on it.
//!
//! In a user namespace the process holds every capability, but only over what belongs to that namespace: out-of-memory
//! scores, AppArmor profiles and the cgroups of the host do not.

use nix::unistd::{AccessFlags, access};

use crate::messages::ContainerStats;

/// The file that a process must be able to write to create cgroups in a user namespace: version 1 is never delegated.
const DELEGATED: &str = "/sys/fs/cgroup/cgroup.subtree_control";
const CAP_SYS_RESOURCE: u32 = 24;

/// What containers can be given here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privileges {
    /// Whether out-of-memory scores below our own can be set.
    pub lower_oom_scores: bool,
    /// Whether AppArmor profiles can be loaded.
    pub apparmor: bool,
    /// Whether containers can have cgroups.
    pub cgroups: bool,
}

impl Privileges {
    /// Those of this process.
    pub fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::of(&status, in_user_namespace(), access(DELEGATED, AccessFlags::W_OK).is_ok())
    }

    /// `status` is `/proc/self/status`.
    fn of(status: &str, in_user_namespace: bool, has_delegated_cgroup: bool) -> Self {
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default();
        Self {
            lower_oom_scores: !in_user_namespace && effective & (1 << CAP_SYS_RESOURCE) != 0,
            apparmor: !in_user_namespace,
            cgroups: !in_user_namespace || has_delegated_cgroup,
        }
    }
}

/// Removes the usage of containers without cgroups: they are in that of the runtime, whose figures would be reported as theirs.
pub fn forget_usage(stats: &mut [ContainerStats]) {
    for one in stats {
        (one.cpu, one.memory) = (None, None);
    }
}

/// Whether this process is in a user namespace other than the host's.
pub fn in_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !is_identity(&map))
}

/// Whether a map of user ids leaves all of them as they are.
fn is_identity(map: &str) -> bool {
    let numbers: Vec<&str> = map.split_whitespace().collect();
    numbers == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_namespace_has_another_map() {
        for (map, expected) in [
            ("         0          0 4294967295\n", true),
            ("         0       1000          1\n         1     100000      65536\n", false),
            ("         0          0      65536\n", false),
            ("", false),
        ] {
            assert_eq!(is_identity(map), expected, "{map:?}");
        }
    }

    #[test]
    fn the_usage_of_others_is_not_reported() {
        let (cpu, memory) = (Some(Default::default()), Some(Default::default()));
        let (attributes, writable_layer) = (Some(Default::default()), Some(Default::default()));
        let mut stats = [ContainerStats { attributes, cpu, memory, writable_layer }];
        forget_usage(&mut stats);
        let [one] = stats;
        assert!(one.cpu.is_none() && one.memory.is_none() && one.attributes.is_some() && one.writable_layer.is_some());
    }

    #[test]
    fn capabilities_in_a_user_namespace_do_not_reach_the_host() {
        let (all, without) = ("CapEff:\t000001ffffffffff\n", "CapEff:\t000001fffeffffff\n");
        let privileges = |lower_oom_scores, apparmor, cgroups| Privileges { lower_oom_scores, apparmor, cgroups };
        for (status, in_user_namespace, delegated, expected) in [
            (all, false, false, privileges(true, true, true)),
            (without, false, false, privileges(false, true, true)),
            ("", false, true, privileges(false, true, true)),
            (all, true, false, privileges(false, false, false)),
            (all, true, true, privileges(false, false, true)),
        ] {
            assert_eq!(Privileges::of(status, in_user_namespace, delegated), expected, "{status:?}");
        }
    }
}
