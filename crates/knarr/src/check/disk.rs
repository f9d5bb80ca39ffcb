//! The disk of the data directory: free space, and the latency of durable writes, on which every write of the API depends.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Finding;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Below this, a first start cannot complete.
const MIN_FREE_SPACE: u64 = 64 * MIB;
const MEASURE_DURATION: Duration = Duration::from_millis(300);

/// Whether a first start would run into a full disk. A data directory in use starts again, as others may free space.
pub fn no_room(data: &Path) -> Option<Finding> {
    let has_run = ["store", "kubelet"].iter().any(|part| data.join(part).exists());
    let directory = existing(data);
    let free = free(&directory).ok().filter(|free| !has_run && *free < MIN_FREE_SPACE)?;
    let found = format!("only {} MiB are free in {}", free / MIB, directory.display());
    Some(Finding::missing("disk space", found, "free at least 1 GiB there, or choose another --data-dir"))
}

pub fn space(data: &Path) -> Finding {
    let directory = existing(data);
    match free(&directory) {
        Ok(free) => {
            let found = format!("{} GiB free in {}", free / GIB, directory.display());
            match free {
                0..GIB => Finding::missing("disk space", found, "free at least 1 GiB, or choose another --data-dir"),
                _ if free < 5 * GIB => Finding::poor("disk space", found, "images and logs need room: 5 GiB is better"),
                _ => Finding::good("disk space", found),
            }
        }
        Err(error) => Finding::missing("disk space", error.to_string(), "choose another --data-dir"),
    }
}

fn free(directory: &Path) -> nix::Result<u64> {
    nix::sys::statvfs::statvfs(directory).map(|status| status.blocks_available() * status.fragment_size())
}

pub fn sync_speed(data: &Path) -> Finding {
    let directory = existing(data);
    let file = tempfile(&directory);
    let measured = measure(&file);
    // The test file is removed.
    let _ = std::fs::remove_file(&file);
    match measured {
        Ok(a_second) => {
            let found = format!("{a_second} synced writes a second");
            match a_second {
                0..100 => Finding::poor("disk sync", found, "the store will be slow: put --data-dir on an SSD"),
                _ => Finding::good("disk sync", found),
            }
        }
        Err(error) => {
            let found = format!("cannot write {}: {error}", directory.display());
            Finding::missing("disk sync", found, "run as root, or choose another --data-dir")
        }
    }
}

fn measure(path: &Path) -> std::io::Result<u64> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let block = [0x6b_u8; 4096];
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < MEASURE_DURATION {
        file.rewind()?;
        file.write_all(&block)?;
        file.sync_data()?;
        count += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    // The rate is a small whole number of writes.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok((f64::from(count) / seconds) as u64)
}

fn tempfile(directory: &Path) -> PathBuf {
    directory.join(format!(".knarr-check-{}", std::process::id()))
}

/// The directory itself or, if it does not exist yet, its nearest existing parent.
fn existing(directory: &Path) -> PathBuf {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let found = absolute.ancestors().find(|path| path.is_dir()).map(Path::to_owned);
    found.unwrap_or_else(|| PathBuf::from("/"))
}
