//! Detailed statistics of a cgroup, beyond what eviction and autoscaling need.

use std::path::{Path, PathBuf};

/// Fields are none where the kernel does not report them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub user_nanoseconds: Option<u64>,
    pub system_nanoseconds: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled_nanoseconds: Option<u64>,
    pub cache: Option<u64>,
    pub mapped_file: Option<u64>,
    pub swap: Option<u64>,
    /// Maximum swap in bytes.
    pub swap_limit: Option<u64>,
    pub active_file: Option<u64>,
    pub inactive_file: Option<u64>,
    pub kernel: Option<u64>,
    pub highest_memory: Option<u64>,
    pub limit_hits: Option<u64>,
    pub killed: Option<u64>,
    pub processes_limit: Option<u64>,
    pub cpu_shares: Option<u64>,
    /// Microseconds; none without a limit.
    pub cpu_quota: Option<u64>,
    pub cpu_period: Option<u64>,
    /// Bytes; none without a limit.
    pub memory_limit: Option<u64>,
    pub devices: Vec<DeviceTraffic>,
}

/// I/O of one block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// Major and minor number.
    pub device: String,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

pub(super) fn unified(directory: &Path) -> Details {
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (cpu, memory, events) = (text("cpu.stat"), text("memory.stat"), text("memory.events"));
    let limits = text("cpu.max");
    let mut limits = limits.split_whitespace().map(|word| word.parse::<u64>().ok());
    let micro = |value: Option<u64>| value.map(|micro| micro * 1000);
    Details {
        user_nanoseconds: micro(field(&cpu, "user_usec")),
        system_nanoseconds: micro(field(&cpu, "system_usec")),
        periods: field(&cpu, "nr_periods"),
        throttled_periods: field(&cpu, "nr_throttled"),
        throttled_nanoseconds: micro(field(&cpu, "throttled_usec")),
        cache: field(&memory, "file"),
        mapped_file: field(&memory, "file_mapped"),
        swap: number(&text("memory.swap.current")),
        swap_limit: number(&text("memory.swap.max")),
        active_file: field(&memory, "active_file"),
        inactive_file: field(&memory, "inactive_file"),
        kernel: field(&memory, "kernel"),
        highest_memory: number(&text("memory.peak")),
        limit_hits: field(&events, "max"),
        killed: field(&events, "oom_kill"),
        processes_limit: number(&text("pids.max")),
        cpu_shares: number(&text("cpu.weight")).map(|weight| 2 + (weight.saturating_sub(1) * 262_142) / 9999),
        cpu_quota: limits.next().flatten(),
        cpu_period: limits.next().flatten(),
        memory_limit: number(&text("memory.max")),
        devices: unified_devices(&text("io.stat")),
    }
}

pub(super) fn separate(directory: impl Fn(&str) -> Option<PathBuf>) -> Details {
    let text = |controller: &str, name: &str| {
        let path = directory(controller).map(|directory| directory.join(name));
        path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    };
    let (cpu, memory) = (text("cpu", "cpu.stat"), text("memory", "memory.stat"));
    let account = text("cpuacct", "cpuacct.stat");
    let ticks = |value: Option<u64>| value.map(|ticks| ticks * 10_000_000);
    // The kernel reports "no limit" as a number near the maximum.
    let limit = number(&text("memory", "memory.limit_in_bytes")).filter(|limit| *limit < 1 << 60);
    Details {
        user_nanoseconds: ticks(field(&account, "user")),
        system_nanoseconds: ticks(field(&account, "system")),
        periods: field(&cpu, "nr_periods"),
        throttled_periods: field(&cpu, "nr_throttled"),
        throttled_nanoseconds: field(&cpu, "throttled_time"),
        cache: field(&memory, "total_cache"),
        mapped_file: field(&memory, "total_mapped_file"),
        swap: field(&memory, "total_swap"),
        swap_limit: number(&text("memory", "memory.memsw.limit_in_bytes"))
            .zip(limit)
            .map(|(both, memory)| both.saturating_sub(memory)),
        active_file: field(&memory, "total_active_file"),
        inactive_file: field(&memory, "total_inactive_file"),
        kernel: number(&text("memory", "memory.kmem.usage_in_bytes")),
        highest_memory: number(&text("memory", "memory.max_usage_in_bytes")),
        limit_hits: number(&text("memory", "memory.failcnt")),
        killed: field(&text("memory", "memory.oom_control"), "oom_kill"),
        processes_limit: number(&text("pids", "pids.max")),
        cpu_shares: number(&text("cpu", "cpu.shares")),
        cpu_quota: number(&text("cpu", "cpu.cfs_quota_us")),
        cpu_period: number(&text("cpu", "cpu.cfs_period_us")),
        memory_limit: limit,
        devices: separate_devices(
            &text("blkio", "blkio.throttle.io_service_bytes_recursive"),
            &text("blkio", "blkio.throttle.io_serviced_recursive"),
        ),
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn field(table: &str, name: &str) -> Option<u64> {
    table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`
fn unified_devices(table: &str) -> Vec<DeviceTraffic> {
    let one = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let of = |name: &str| {
            rest.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                .unwrap_or(0)
        };
        Some(DeviceTraffic {
            device: device.to_string(),
            read_bytes: of("rbytes"),
            written_bytes: of("wbytes"),
            reads: of("rios"),
            writes: of("wios"),
        })
    };
    table.lines().filter_map(one).collect()
}

/// `8:0 Read 1`, a line each for reads, writes and sums.
fn separate_devices(bytes: &str, operations: &str) -> Vec<DeviceTraffic> {
    let mut devices: Vec<DeviceTraffic> = Vec::new();
    for (table, counts_bytes) in [(bytes, true), (operations, false)] {
        for line in table.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [device, kind, count] = fields.as_slice() else { continue };
            let Ok(count) = count.parse() else { continue };
            let at = devices.iter().position(|known| known.device == *device).unwrap_or_else(|| {
                devices.push(DeviceTraffic { device: (*device).to_string(), ..Default::default() });
                devices.len() - 1
            });
            match (*kind, counts_bytes) {
                ("Read", true) => devices[at].read_bytes = count,
                ("Write", true) => devices[at].written_bytes = count,
                ("Read", false) => devices[at].reads = count,
                ("Write", false) => devices[at].writes = count,
                _ => {}
            }
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hierarchies_report_block_devices() {
        let expected =
            vec![DeviceTraffic { device: "8:0".into(), read_bytes: 1, written_bytes: 2, reads: 3, writes: 4 }];
        assert_eq!(unified_devices("8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=9 dios=9\n"), expected);
        assert_eq!(
            separate_devices("8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n", "8:0 Read 3\n8:0 Write 4\n"),
            expected
        );
    }

    #[test]
    fn limits_of_the_unified_hierarchy_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in [
            ("cpu.max", "50000 100000\n"),
            ("memory.max", "max\n"),
            ("cpu.weight", "100\n"),
            ("memory.events", "low 0\nmax 3\noom 1\noom_kill 2\n"),
        ] {
            std::fs::write(directory.path().join(name), content).expect("a file");
        }
        let details = unified(directory.path());
        assert_eq!((details.cpu_quota, details.cpu_period, details.memory_limit), (Some(50_000), Some(100_000), None));
        assert_eq!((details.limit_hits, details.killed, details.cpu_shares), (Some(3), Some(2), Some(2597)));
    }
}
