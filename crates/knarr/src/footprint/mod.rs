//! Keeps the process's resident memory small.
//!
//! Much of the program runs only once, at startup or for a rare request, but its pages count as memory of this process as
//! long as they are mapped. They are unmapped periodically; pages in use return from the page cache within microseconds,
//! and the others are free for other processes.

mod fault_around;

use std::io;
use std::time::Duration;

/// By then everything has started.
const FIRST_DELAY: Duration = Duration::from_secs(15);
const INTERVAL: Duration = Duration::from_secs(60);

/// Unmaps unused pages periodically, for as long as the process lives.
pub async fn keep_small() {
    // Kept as long as the process lives.
    let _fault_around = match mapped().and_then(|files| fault_around::disable(&files)) {
        Ok(guard) => Some(guard),
        Err(error) => {
            tracing::debug!(%error, "cannot disable fault-around; more of the program stays mapped");
            None
        }
    };
    let mut wait = FIRST_DELAY;
    loop {
        if let Err(error) = unmap_unused() {
            tracing::debug!(%error, "cannot unmap unused pages of the program");
            return;
        }
        tokio::time::sleep(wait).await;
        wait = INTERVAL;
    }
}

fn mapped() -> io::Result<Vec<(usize, usize)>> {
    Ok(files(&std::fs::read_to_string("/proc/self/smaps")?))
}

fn unmap_unused() -> io::Result<()> {
    for (start, length) in mapped()? {
        // SAFETY: the range is a file mapping that was never written, so the next access reads the same content from the
        // file again.
        if unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The ranges of code and constants: read-only file mappings without anonymous pages. Constants with relocations were
/// changed by the loader, have such pages, and would lose them.
fn files(mappings: &str) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut is_file = false;
    for line in mappings.lines() {
        if let Some((range, permissions, is_path)) = header(line) {
            is_file = is_path && permissions.starts_with('r') && !permissions.contains('w');
            if is_file {
                found.push(range);
            }
        } else if is_file && line.strip_prefix("Anonymous:").is_some_and(|size| size.trim() != "0 kB") {
            found.pop();
            is_file = false;
        }
    }
    found
}

/// Parses the first line of a mapping: its range, permissions, and whether it has a file.
fn header(line: &str) -> Option<((usize, usize), &str, bool)> {
    let mut columns = line.split_ascii_whitespace();
    let (start, end) = columns.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let permissions = columns.next()?;
    let is_path = columns.nth(3).is_some_and(|name| name.starts_with('/'));
    Some(((start, end.checked_sub(start)?), permissions, is_path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPPINGS: &str = "\
55d000000000-55d000100000 r--p 00000000 fe:00 42 /usr/bin/knarr
Rss:                 900 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
55d000100000-55d000300000 r-xp 00100000 fe:00 42 /usr/bin/knarr
Anonymous:             0 kB
55d000300000-55d000400000 r--p 00300000 fe:00 42 /usr/bin/knarr
Anonymous:           996 kB
55d000400000-55d000401000 rw-p 00400000 fe:00 42 /usr/bin/knarr
Anonymous:             0 kB
55d000500000-55d000600000 rw-p 00000000 00:00 0
Anonymous:           100 kB
7f0000000000-7f0000100000 r-xp 00000000 fe:00 43 /usr/lib/libc.so.6
Anonymous:             0 kB
7ffe00000000-7ffe00002000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
";

    #[test]
    fn only_unchanged_file_mappings_are_unmapped() {
        let expected = [(0x55d0_0000_0000, 0x10_0000), (0x55d0_0010_0000, 0x20_0000), (0x7f00_0000_0000, 0x10_0000)];
        assert_eq!(files(MAPPINGS), expected);
    }

    #[test]
    fn the_process_works_afterwards() {
        let guard = fault_around::disable(&mapped().unwrap());
        unmap_unused().unwrap();
        // Kernels before 6.7 do not support it, and some forbid it.
        let refused = guard.err().and_then(|error| error.raw_os_error());
        assert!(matches!(refused, None | Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)), "{refused:?}");
        assert_eq!((1..=10).map(|number| number * number).sum::<u64>(), 385);
    }
}
