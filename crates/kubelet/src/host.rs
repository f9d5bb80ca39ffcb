//! Facts about the host: CPUs, memory, kernel, identifiers and boot time.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::jiff::Timestamp;

/// What the kubelet knows about the host it runs on.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub cpus: u32,
    /// Bytes.
    pub memory: u64,
    pub swap: u64,
    /// Bytes by page size, as resource names have it ("2Mi").
    pub hugepages: BTreeMap<String, u64>,
    pub kernel: String,
    pub operating_system: String,
    pub machine_id: String,
    pub boot_id: String,
    pub system_uuid: String,
    pub architecture: &'static str,
    /// Seconds since 1970.
    pub booted_at: i64,
}

pub fn read() -> Host {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let meminfo = line("/proc/meminfo");
    Host {
        cpus: u32::try_from(std::thread::available_parallelism().map_or(1, usize::from)).unwrap_or(1),
        memory: kibibytes(&meminfo, "MemTotal"),
        swap: kibibytes(&meminfo, "SwapTotal"),
        hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
        kernel: line("/proc/sys/kernel/osrelease"),
        operating_system: pretty_name(&line("/etc/os-release")),
        machine_id: line("/etc/machine-id"),
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        // Hosts without this table are identified by their machine id.
        system_uuid: Some(line("/sys/class/dmi/id/product_uuid"))
            .filter(|uuid| !uuid.is_empty())
            .unwrap_or_else(|| line("/etc/machine-id")),
        architecture: knarr_version::ARCHITECTURE,
        booted_at: booted_at(&line("/proc/stat")),
    }
}

/// Bytes of memory that programs can still allocate.
pub fn available_memory() -> u64 {
    kibibytes(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable")
}

/// Total and free bytes of swap.
pub fn swap() -> (u64, u64) {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (kibibytes(&table, "SwapTotal"), kibibytes(&table, "SwapFree"))
}

fn kibibytes(table: &str, name: &str) -> u64 {
    let value = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

fn pretty_name(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map(|name| name.trim_matches('"').to_string()).unwrap_or_else(|| "Linux".to_string())
}

fn booted_at(stat: &str) -> i64 {
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok()).unwrap_or(0)
}

pub fn hugepages(directory: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(kilobytes) = name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB")) else {
            continue;
        };
        let Ok(size) = kilobytes.parse::<u64>() else { continue };
        let count = std::fs::read_to_string(entry.path().join("nr_hugepages")).unwrap_or_default();
        let count: u64 = count.trim().parse().unwrap_or(0);
        let title = if size.is_multiple_of(1 << 20) {
            format!("{}Gi", size >> 20)
        } else if size.is_multiple_of(1 << 10) {
            format!("{}Mi", size >> 10)
        } else {
            format!("{size}Ki")
        };
        found.insert(title, count * size * 1024);
    }
    found
}

/// This process.
pub struct Process {
    /// When it started, in seconds since 1970.
    pub started: f64,
}

pub fn own_process() -> Option<Process> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let field = |place: usize| fields.get(place)?.parse::<f64>().ok();
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse::<f64>().ok()?;
    let booted = Timestamp::now().as_millisecond() as f64 / 1e3 - uptime;
    Some(Process { started: booted + field(19)? / 100.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        assert_eq!(kibibytes("MemTotal:  4 kB\nMemAvailable: 3 kB\n", "MemAvailable"), 3072);
        assert_eq!(pretty_name("ID=x\nPRETTY_NAME=\"A B\"\n"), "A B");
        assert_eq!(booted_at("cpu 1\nbtime 99\n"), 99);
    }
}
