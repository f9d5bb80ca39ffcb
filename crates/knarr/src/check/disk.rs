//! The disk under the data directory: room, and how fast a write is made durable, which every write of the API waits for.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Finding;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// With less than this, what is begun anew does not come to an end.
const LEAST: u64 = 64 * MIB;
const MEASURED: Duration = Duration::from_millis(300);

/// Whether a first start would run into a full disk. What has run here before starts again, as others may make room.
pub fn no_room(data: &Path) -> Option<Finding> {
    let has_run = ["store", "kubelet"].iter().any(|part| data.join(part).exists());
    let folder = existing(data);
    let free = free(&folder).ok().filter(|free| !has_run && *free < LEAST)?;
    let found = format!("only {} MiB are free in {}", free / MIB, folder.display());
    Some(Finding::missing("disk space", found, "free at least 1 GiB there, or choose another --data-dir"))
}

pub fn space(data: &Path) -> Finding {
    let folder = existing(data);
    match free(&folder) {
        Ok(free) => {
            let found = format!("{} GiB free in {}", free / GIB, folder.display());
            match free {
                0..GIB => Finding::missing("disk space", found, "free at least 1 GiB, or choose another --data-dir"),
                _ if free < 5 * GIB => Finding::poor("disk space", found, "images and logs need room: 5 GiB is better"),
                _ => Finding::good("disk space", found),
            }
        }
        Err(error) => Finding::missing("disk space", error.to_string(), "choose another --data-dir"),
    }
}

fn free(folder: &Path) -> nix::Result<u64> {
    nix::sys::statvfs::statvfs(folder).map(|status| status.blocks_available() * status.fragment_size())
}

pub fn sync_speed(data: &Path) -> Finding {
    let folder = existing(data);
    let file = tempfile(&folder);
    let measured = measure(&file);
    // Nothing of the trial stays.
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
            let found = format!("{} cannot be written: {error}", folder.display());
            Finding::missing("disk sync", found, "run as root, or choose another --data-dir")
        }
    }
}

fn measure(path: &Path) -> std::io::Result<u64> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let block = [0x6b_u8; 4096];
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < MEASURED {
        file.rewind()?;
        file.write_all(&block)?;
        file.sync_data()?;
        count += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    // The rate is a small whole number of writes.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok((f64::from(count) / seconds) as u64)
}

fn tempfile(folder: &Path) -> PathBuf {
    folder.join(format!(".knarr-check-{}", std::process::id()))
}

/// The folder itself or, before it is made, the nearest above it.
fn existing(folder: &Path) -> PathBuf {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let found = absolute.ancestors().find(|path| path.is_dir()).map(Path::to_owned);
    found.unwrap_or_else(|| PathBuf::from("/"))
}
