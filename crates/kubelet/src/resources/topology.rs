//! The NUMA topology of the host's CPUs and memory, read from sysfs.

use std::collections::BTreeMap;
use std::path::Path;

use super::cpu_set::NumberSet;

/// The position of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub core: (u32, u32),
    pub socket: u32,
    pub node: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub cpus: BTreeMap<u32, Place>,
    /// Bytes of each NUMA node by resource name: memory and huge pages.
    pub memory: BTreeMap<u32, BTreeMap<String, u64>>,
}

impl Layout {
    pub fn all(&self) -> NumberSet {
        self.cpus.keys().copied().collect()
    }

    pub fn nodes(&self) -> NumberSet {
        self.memory.keys().copied().chain(self.cpus.values().map(|place| place.node)).collect()
    }
}

/// Reads `/sys/devices/system` or a copy of it. A kernel without NUMA counts as one node.
pub fn read(system: &Path, all_memory: u64) -> Layout {
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let number = |path: &Path| text(path).parse::<u32>().unwrap_or(0);
    let online = NumberSet::parse(&text(&system.join("cpu/online"))).unwrap_or_default();
    let mut layout = Layout::default();
    let mut node_of = BTreeMap::new();
    let nodes = NumberSet::parse(&text(&system.join("node/online"))).unwrap_or_default();
    for node in nodes.iter() {
        let directory = system.join(format!("node/node{node}"));
        for cpu in NumberSet::parse(&text(&directory.join("cpulist"))).unwrap_or_default().iter() {
            node_of.insert(cpu, node);
        }
        layout.memory.insert(node, memory_of(&directory));
    }
    for cpu in online.iter() {
        let directory = system.join(format!("cpu/cpu{cpu}/topology"));
        let socket = number(&directory.join("physical_package_id"));
        let core = (socket, number(&directory.join("core_id")));
        layout.cpus.insert(cpu, Place { core, socket, node: node_of.get(&cpu).copied().unwrap_or(0) });
    }
    if layout.memory.is_empty() {
        layout.memory.insert(0, BTreeMap::from([("memory".to_string(), all_memory)]));
    }
    layout
}

fn memory_of(node: &Path) -> BTreeMap<String, u64> {
    let mut amounts = crate::host::hugepages(&node.join("hugepages"));
    let mut amounts: BTreeMap<String, u64> =
        std::mem::take(&mut amounts).into_iter().map(|(size, bytes)| (format!("hugepages-{size}"), bytes)).collect();
    let huge: u64 = amounts.values().sum();
    let table = std::fs::read_to_string(node.join("meminfo")).unwrap_or_default();
    // "Node 0 MemTotal:  16318316 kB"
    let total = table.lines().find(|line| line.contains("MemTotal:"));
    let kibibytes: u64 = total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok()).unwrap_or(0);
    amounts.insert("memory".to_string(), (kibibytes * 1024).saturating_sub(huge));
    amounts
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two sockets, each a NUMA node of two cores with two threads, numbered as the kernel likes to: 0-3 are the first
    /// threads of all cores, 4-7 their siblings.
    pub fn two_sockets() -> Layout {
        let place = |cpu: u32| {
            let core = cpu % 4;
            Place { core: (core / 2, core), socket: core / 2, node: core / 2 }
        };
        let memory = |bytes| BTreeMap::from([("memory".to_string(), bytes)]);
        Layout {
            cpus: (0..8).map(|cpu| (cpu, place(cpu))).collect(),
            memory: [(0, memory(1000)), (1, memory(1000))].into(),
        }
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, content) in [
            ("cpu/online", "0-1\n"),
            ("cpu/cpu0/topology/core_id", "0\n"),
            ("cpu/cpu0/topology/physical_package_id", "0\n"),
            ("cpu/cpu1/topology/core_id", "3\n"),
            ("cpu/cpu1/topology/physical_package_id", "1\n"),
            ("node/online", "0-1\n"),
            ("node/node0/cpulist", "0\n"),
            ("node/node1/cpulist", "1\n"),
            ("node/node0/meminfo", "Node 0 MemTotal:       4 kB\n"),
        ] {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, content).expect("a file");
        }
        let layout = read(directory.path(), 0);
        assert_eq!(layout.cpus[&1], Place { core: (1, 3), socket: 1, node: 1 });
        assert_eq!(layout.memory[&0]["memory"], 4096);
        assert_eq!(layout.nodes().to_string(), "0-1");
    }
}
