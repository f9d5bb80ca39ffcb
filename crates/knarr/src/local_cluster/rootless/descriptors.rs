//! File descriptors that outlive the programs a process executes, handed on by their numbers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Lets the program of a command inherit descriptors, which must be open until it is started.
pub fn inherit(command: &mut Command, descriptors: Vec<RawFd>) {
    // SAFETY: fcntl is safe between fork and exec, and changes only the child's own table.
    unsafe {
        command.pre_exec(move || descriptors.iter().try_for_each(|number| keep(*number)));
    }
}

fn keep(number: RawFd) -> io::Result<()> {
    // SAFETY: only borrowed for one call, which fails if there is no such descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::empty())).map(drop).map_err(Into::into)
}

/// Takes an inherited descriptor over. Programs that this one executes do not get it.
pub fn adopt(number: RawFd) -> anyhow::Result<OwnedFd> {
    ensure!(number > 2, "{number} is no descriptor that is handed on");
    // SAFETY: only borrowed for one call, which fails if there is no such descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .with_context(|| format!("there is no descriptor {number}"))?;
    // SAFETY: it is open, and the one who started this program left it to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(borrowed.as_raw_fd()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd as _, IntoRawFd as _};

    #[test]
    fn descriptors_are_handed_on_once() {
        let file = tempfile::tempfile().unwrap();
        let flags = |file: BorrowedFd<'_>| fcntl(file, FcntlArg::F_GETFD).unwrap();
        keep(file.as_raw_fd()).unwrap();
        assert_eq!(flags(file.as_fd()), 0);
        let adopted = adopt(file.into_raw_fd()).unwrap();
        assert_eq!(flags(adopted.as_fd()), FdFlag::FD_CLOEXEC.bits());
        assert!(adopt(1).is_err() && adopt(1_000_000).is_err());
    }
}
