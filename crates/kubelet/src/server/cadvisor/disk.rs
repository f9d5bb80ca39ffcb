//! I/O of the disk with the node's file system, which the kernel counts whether or not it does so for cgroups.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The counters of one line of `/proc/diskstats`, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    /// Major and minor number.
    pub(super) device: String,
    counters: [u64; 11],
}

/// A metric, its type, its help text, the column, and how many units of the column make one of the metric.
type Column = (&'static str, &'static str, &'static str, usize, f64);

/// The metrics that only the node has.
pub(super) const COLUMNS: [Column; 9] = [
    ("container_fs_reads_merged_total", "counter", "Reads that were merged with others.", 1, 1.0),
    ("container_fs_sector_reads_total", "counter", "Sectors read.", 2, 1.0),
    ("container_fs_read_seconds_total", "counter", "Time spent reading, in seconds.", 3, 1e3),
    ("container_fs_writes_merged_total", "counter", "Writes that were merged with others.", 5, 1.0),
    ("container_fs_sector_writes_total", "counter", "Sectors written.", 6, 1.0),
    ("container_fs_write_seconds_total", "counter", "Time spent writing, in seconds.", 7, 1e3),
    ("container_fs_io_current", "gauge", "Operations in progress.", 8, 1.0),
    ("container_fs_io_time_seconds_total", "counter", "Time with operations in progress, in seconds.", 9, 1e3),
    ("container_fs_io_time_weighted_seconds_total", "counter", "Time of all operations together, in seconds.", 10, 1e3),
];

impl Disk {
    /// The disk with this directory; none if it is on no block device.
    pub(super) fn of(directory: &Path) -> Option<Self> {
        let number = std::fs::metadata(directory).ok()?.dev();
        let device = format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
        Self::parse(&std::fs::read_to_string("/proc/diskstats").ok()?, device)
    }

    fn parse(table: &str, device: String) -> Option<Self> {
        table.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let (major, minor, _name) = (fields.next()?, fields.next()?, fields.next()?);
            if device != format!("{major}:{minor}") {
                return None;
            }
            let counters: Vec<u64> = fields.take(11).filter_map(|field| field.parse().ok()).collect();
            Some(Self { device: device.clone(), counters: counters.try_into().ok()? })
        })
    }

    pub(super) fn reads(&self) -> u64 {
        self.counters[0]
    }

    pub(super) fn writes(&self) -> u64 {
        self.counters[4]
    }

    pub(super) fn value(&self, (_, _, _, column, unit): &Column) -> f64 {
        self.counters[*column] as f64 / unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_the_numbers_of_the_device() {
        let table =
            "   7       0 loop0 9 9 9 9 9 9 9 9 9 9 9\n 254       1 vda1 1 2 3 4000 5 6 7 8000 9 10000 11000 0 0\n";
        let disk = Disk::parse(table, "254:1".into()).expect("a disk");
        assert_eq!((disk.reads(), disk.writes()), (1, 5));
        let values = COLUMNS.each_ref().map(|column| disk.value(column));
        assert_eq!(values, [2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        assert_eq!(Disk::parse(table, "0:40".into()), None, "a file system on no block device");
        assert_eq!(Disk::parse("254 1 vda1 1 2\n", "254:1".into()), None, "too few counters");
    }
}
