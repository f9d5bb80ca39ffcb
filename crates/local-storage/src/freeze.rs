//! Freezing a mounted filesystem, so that its image is consistent while it is copied.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::error::Error;

const FIFREEZE: libc::c_ulong = 0xC004_5877;
const FITHAW: libc::c_ulong = 0xC004_5878;

/// A frozen filesystem; writes to it wait until this is dropped.
pub struct Frozen {
    mounted: PathBuf,
    directory: File,
}

impl Frozen {
    /// Writes everything to the image and stops further writes.
    pub fn new(mounted: &Path) -> Result<Self, Error> {
        let directory = File::open(mounted).map_err(Error::file("open", mounted))?;
        control(&directory, FIFREEZE).map_err(Error::file("freeze", mounted))?;
        Ok(Self { mounted: mounted.to_path_buf(), directory })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = control(&self.directory, FITHAW) {
            tracing::error!(mount = %self.mounted.display(), %error, "cannot thaw a filesystem");
        }
    }
}

/// Thaws what a killed process left frozen. Returns whether it was.
pub fn thaw(mounted: &Path) -> bool {
    File::open(mounted).and_then(|directory| control(&directory, FITHAW)).is_ok()
}

fn control(directory: &File, request: libc::c_ulong) -> io::Result<()> {
    // SAFETY: neither call has an argument that the kernel reads or writes.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), request as _, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
