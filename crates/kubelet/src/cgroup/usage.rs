//! Resource usage of a cgroup.

use std::path::{Path, PathBuf};

/// Fields are none where the kernel does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanoseconds: Option<u64>,
    pub memory: Option<u64>,
    /// Memory that cannot be reclaimed without writing back or killing.
    pub working_set: Option<u64>,
    pub resident: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub processes: Option<u64>,
}

pub(super) fn unified(directory: &Path) -> Usage {
    let cpu = table(&directory.join("cpu.stat"));
    let memory = table(&directory.join("memory.stat"));
    // The root cgroup has no total, so it is added up.
    let sum = || Some(field(&memory, "anon")? + field(&memory, "file")? + field(&memory, "kernel").unwrap_or(0));
    let used = number(&directory.join("memory.current")).or_else(sum);
    Usage {
        cpu_nanoseconds: field(&cpu, "usage_usec").map(|micro| micro * 1000),
        memory: used,
        working_set: used.map(|used| used.saturating_sub(field(&memory, "inactive_file").unwrap_or(0))),
        resident: field(&memory, "anon"),
        page_faults: field(&memory, "pgfault"),
        major_page_faults: field(&memory, "pgmajfault"),
        processes: number(&directory.join("pids.current")),
    }
}

pub(super) fn separate(directory: impl Fn(&str) -> Option<PathBuf>) -> Usage {
    let file = |controller: &str, name: &str| directory(controller).map(|directory| directory.join(name));
    let memory = file("memory", "memory.stat").map(|path| table(&path)).unwrap_or_default();
    let used = file("memory", "memory.usage_in_bytes").and_then(|path| number(&path));
    Usage {
        cpu_nanoseconds: file("cpuacct", "cpuacct.usage").and_then(|path| number(&path)),
        memory: used,
        working_set: used.map(|used| used.saturating_sub(field(&memory, "total_inactive_file").unwrap_or(0))),
        resident: field(&memory, "total_rss"),
        page_faults: field(&memory, "total_pgfault"),
        major_page_faults: field(&memory, "total_pgmajfault"),
        processes: file("pids", "pids.current").and_then(|path| number(&path)),
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn table(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(table: &str, name: &str) -> Option<u64> {
    table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_unified_hierarchy_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in [
            ("cpu.stat", "usage_usec 5\nuser_usec 3\n"),
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 300\nfile 600\ninactive_file 400\npgfault 7\npgmajfault 1\n"),
            ("pids.current", "2\n"),
        ] {
            std::fs::write(directory.path().join(name), content).expect("a file");
        }
        let expected = Usage {
            cpu_nanoseconds: Some(5000),
            memory: Some(1000),
            working_set: Some(600),
            resident: Some(300),
            page_faults: Some(7),
            major_page_faults: Some(1),
            processes: Some(2),
        };
        assert_eq!(unified(directory.path()), expected);
    }
}
