//! Keeping the process small.
//!
//! Much of the program runs once, at the start or for a rare request, but the pages it is read into count as this
//! process' memory as long as they are mapped. They are unmapped from time to time; what is still in use comes back from
//! the page cache within microseconds, page by page, and what is not is free for others.

mod alone;

use std::io;
use std::time::Duration;

/// By then everything has started.
const FIRST: Duration = Duration::from_secs(15);
const THEN: Duration = Duration::from_secs(60);

/// Hands what is not in use back, now and then, as long as the process lives.
pub async fn keep_small() {
    // Kept as long as the process lives.
    let _alone = match mapped().and_then(|files| alone::map_alone(&files)) {
        Ok(alone) => Some(alone),
        Err(error) => {
            tracing::debug!(%error, "this kernel maps more of the program than is used");
            None
        }
    };
    let mut wait = FIRST;
    loop {
        if let Err(error) = hand_back() {
            tracing::debug!(%error, "the program's unused pages stay mapped");
            return;
        }
        tokio::time::sleep(wait).await;
        wait = THEN;
    }
}

fn mapped() -> io::Result<Vec<(usize, usize)>> {
    Ok(files(&std::fs::read_to_string("/proc/self/smaps")?))
}

fn hand_back() -> io::Result<()> {
    for (start, length) in mapped()? {
        // SAFETY: the range is mapped from a file and nothing of it was ever written to, so what is next asked of it is
        // read from there again, unchanged.
        if unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Where code and constants are mapped from files: what cannot be written to, and has no pages of its own. Constants that
/// hold addresses were changed while the program was loaded, have such pages, and would lose them.
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

/// The first line of what is said of a mapping: where it is, what may be done with it, and whether it has a file.
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
    fn only_what_is_still_as_in_its_file_is_handed_back() {
        let expected = [(0x55d0_0000_0000, 0x10_0000), (0x55d0_0010_0000, 0x20_0000), (0x7f00_0000_0000, 0x10_0000)];
        assert_eq!(files(MAPPINGS), expected);
    }

    #[test]
    fn the_process_goes_on_afterwards() {
        let alone = alone::map_alone(&mapped().unwrap());
        hand_back().unwrap();
        // Kernels before 6.7 do not know the request, and some let nobody ask.
        let refused = alone.err().and_then(|error| error.raw_os_error());
        assert!(matches!(refused, None | Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)), "{refused:?}");
        assert_eq!((1..=10).map(|number| number * number).sum::<u64>(), 385);
    }
}
