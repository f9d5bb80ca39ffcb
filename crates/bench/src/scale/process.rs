//! What a process uses, as the kernel counts it.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// The memory, CPU time and writes of a process at one moment.
pub struct Usage {
    at: Instant,
    /// Resident memory, and its share of pages that other processes map too, in bytes.
    resident: u64,
    proportional: u64,
    /// CPU time since its start.
    cpu: Duration,
    /// Bytes that it caused to be written to disks since its start.
    written: u64,
}

impl Usage {
    pub fn read(process: u32) -> anyhow::Result<Usage> {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{process}/{name}")).with_context(|| format!("the server's {name}"))
        };
        let memory = read("smaps_rollup")?;
        Ok(Usage {
            at: Instant::now(),
            resident: field(&memory, "Rss:")? * 1024,
            proportional: field(&memory, "Pss:")? * 1024,
            cpu: cpu_time(&read("stat")?).context("the server's stat has another format")?,
            written: field(&read("io")?, "write_bytes:")?,
        })
    }

    /// How many cores it used since an earlier moment.
    pub fn cores_since(&self, before: &Usage) -> f64 {
        self.cpu.saturating_sub(before.cpu).as_secs_f64() / self.at.duration_since(before.at).as_secs_f64()
    }

    pub fn megabytes_written_per_minute_since(&self, before: &Usage) -> f64 {
        let minutes = self.at.duration_since(before.at).as_secs_f64() / 60.0;
        self.written.saturating_sub(before.written) as f64 / 1e6 / minutes
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        write!(out, "PSS {:.0} MB, RSS {:.0} MB", megabytes(self.proportional), megabytes(self.resident))
    }
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> anyhow::Result<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    Ok(value.trim().trim_end_matches(" kB").parse()?)
}

/// The user and system time in `/proc/PID/stat`. The name of the process, in parentheses, may contain anything.
fn cpu_time(stat: &str) -> Option<Duration> {
    /// What Linux reports on all architectures.
    const TICKS_PER_SECOND: u64 = 100;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks()? + ticks()?) * 1000 / TICKS_PER_SECOND))
}

/// The size of all files below a directory.
pub fn directory_size(directory: &Path) -> anyhow::Result<u64> {
    let mut size = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // The server deletes files while they are counted.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        size += if metadata.is_dir() { directory_size(&entry.path())? } else { metadata.len() };
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fields_and_times() {
        assert_eq!(field("Rss:      12 kB\nPss: 7 kB\n", "Pss:").unwrap(), 7);
        assert!(field("Rss: 12 kB", "Pss:").is_err());
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 1 1 1";
        assert_eq!(cpu_time(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu_time("7 (a"), None);
    }
}
