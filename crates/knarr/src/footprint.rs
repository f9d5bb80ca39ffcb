//! Keeping the process small.
//!
//! Much of the program runs once, at the start or for a rare request, but the pages it is read into count as this
//! process' memory as long as they are mapped. They are unmapped from time to time; what is still in use comes back from
//! the page cache within microseconds, and what is not is free for others.

use std::io;
use std::time::Duration;

/// By then everything has started.
const FIRST: Duration = Duration::from_secs(15);
const THEN: Duration = Duration::from_secs(300);

/// Hands code that is not in use back, now and then, as long as the process lives.
pub async fn keep_small() {
    let mut wait = FIRST;
    loop {
        tokio::time::sleep(wait).await;
        wait = THEN;
        if let Err(error) = hand_back_code() {
            tracing::debug!(%error, "the program's unused pages stay mapped");
            return;
        }
    }
}

fn hand_back_code() -> io::Result<()> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for (start, length) in code(&maps, &program.to_string_lossy()) {
        // SAFETY: the range is the program's own code, which is mapped from its file, never written to, and so read
        // again from there, unchanged, when it is next run.
        if unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Where the code of a program is mapped. Only what can be run and not written to: other parts of the file hold
/// addresses that were put in while it was loaded, and would lose them.
fn code<'a>(maps: &'a str, program: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    maps.lines().filter_map(move |line| {
        let (range, rest) = line.split_once(' ')?;
        if !rest.starts_with("r-xp ") || !line.ends_with(program) {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        Some((start, end.checked_sub(start)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d000000000-55d000100000 r--p 00000000 fe:00 42 /usr/bin/knarr
55d000100000-55d000300000 r-xp 00100000 fe:00 42 /usr/bin/knarr
55d000300000-55d000400000 r--p 00300000 fe:00 42 /usr/bin/knarr
55d000400000-55d000401000 rw-p 00400000 fe:00 42 /usr/bin/knarr
7f0000000000-7f0000100000 r-xp 00000000 fe:00 43 /usr/lib/libc.so.6
";

    #[test]
    fn only_the_programs_own_code_is_handed_back() {
        assert_eq!(code(MAPS, "/usr/bin/knarr").collect::<Vec<_>>(), [(0x55d0_0010_0000, 0x20_0000)]);
    }

    #[test]
    fn the_process_goes_on_afterwards() {
        hand_back_code().unwrap();
        assert_eq!((1..=10).map(|number| number * number).sum::<u64>(), 385);
    }
}
