//! Loop devices of image files. Which device has which file is read from the kernel.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::error::Error;

const CONTROL: &str = "/dev/loop-control";
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Another process may configure the free device first.
const ATTEMPTS: usize = 64;

/// The kernel's `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The kernel's `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// An attached device.
#[derive(Debug)]
pub struct LoopDevice {
    pub path: PathBuf,
    /// Keeps a device that detaches itself attached until it is mounted.
    open: OwnedFd,
}

/// How long a device stays attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the last mount of it is gone: a killed process leaves nothing behind.
    WhileOpen,
    /// Until it is detached: the device is used through its name.
    UntilDetached,
}

/// Whether this node has loop devices.
pub fn available() -> bool {
    OpenOptions::new().read(true).write(true).open(CONTROL).is_ok()
}

/// The device of an image, attached now or before.
pub fn attach(image: &Path, lifetime: Lifetime) -> Result<LoopDevice, Error> {
    if let Some(found) = devices_of(image)?.into_iter().next() {
        // With a lifetime of its mounts it may be detached in this moment: then it has no file any more.
        if let Ok(open) = open_device(&found)
            && devices_of(image)?.contains(&found)
        {
            return Ok(LoopDevice { path: found, open });
        }
    }
    let backing = File::options().read(true).write(true).open(image).map_err(Error::file("open", image))?;
    let control = Path::new(CONTROL);
    let control_file = File::options().read(true).write(true).open(control).map_err(Error::file("open", control))?;
    for _ in 0..ATTEMPTS {
        // SAFETY: the call has no argument; the result is a number or -1.
        let number = unsafe { libc::ioctl(control_file.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(Error::file("find a free loop device at", control)(io::Error::last_os_error()));
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let open = open_device(&path)?;
        match configure(&open, &backing, lifetime) {
            Ok(()) => return Ok(LoopDevice { path, open }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(Error::file("attach an image to", &path)(error)),
        }
    }
    Err(Error::Internal("other processes took every free loop device".into()))
}

fn open_device(path: &Path) -> Result<OwnedFd, Error> {
    let file = File::options().read(true).write(true).open(path).map_err(Error::file("open", path))?;
    Ok(OwnedFd::from(file))
}

fn configure(device: &OwnedFd, backing: &File, lifetime: Lifetime) -> io::Result<()> {
    let autoclear = if lifetime == Lifetime::WhileOpen { LO_FLAGS_AUTOCLEAR } else { 0 };
    let file = u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?;
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        // Without direct I/O every page would be cached twice; the kernel ignores it where it is impossible.
        flags: autoclear | LO_FLAGS_DIRECT_IO,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = LoopConfig { file, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the kernel reads a `struct loop_config`, whose layout `LoopConfig` has.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl LoopDevice {
    /// Adopts the new size of the image.
    pub fn update_size(&self) -> Result<(), Error> {
        // SAFETY: the call has no argument.
        let result = unsafe { libc::ioctl(self.open.as_raw_fd(), LOOP_SET_CAPACITY as _, 0) };
        if result < 0 { Err(Error::file("resize", &self.path)(io::Error::last_os_error())) } else { Ok(()) }
    }
}

/// Opens the device of an image, if it has one.
pub fn find(image: &Path) -> Result<Option<LoopDevice>, Error> {
    match devices_of(image)?.into_iter().next() {
        Some(path) => Ok(Some(LoopDevice { open: open_device(&path)?, path })),
        None => Ok(None),
    }
}

/// Detaches every device of an image. One that is still open detaches itself when it is closed.
pub fn detach_all(image: &Path) -> Result<(), Error> {
    devices_of(image)?.iter().try_for_each(|device| detach(device))
}

fn detach(path: &Path) -> Result<(), Error> {
    let device = open_device(path)?;
    // SAFETY: the call has no argument.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _, 0) };
    let error = io::Error::last_os_error();
    // ENXIO: it is detached already.
    if result < 0 && error.raw_os_error() != Some(libc::ENXIO) {
        return Err(Error::file("detach", path)(error));
    }
    Ok(())
}

/// The devices whose file is this image.
pub fn devices_of(image: &Path) -> Result<Vec<PathBuf>, Error> {
    let image = image.canonicalize().map_err(Error::file("resolve", image))?;
    Ok(attached()?.into_iter().filter(|(_, file)| *file == image).map(|(device, _)| device).collect())
}

/// Detaches all devices of images below a directory whose volumes are no longer used.
pub fn release(directory: &Path) -> Result<(), Error> {
    let Ok(directory) = directory.canonicalize() else { return Ok(()) };
    for (device, _) in attached()?.into_iter().filter(|(_, file)| file.starts_with(&directory)) {
        detach(&device)?;
    }
    Ok(())
}

/// All attached devices with their files.
fn attached() -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    let block = Path::new("/sys/block");
    let mut found = Vec::new();
    for entry in fs::read_dir(block).map_err(Error::file("list", block))?.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("loop") {
            continue;
        }
        // Missing while no file is attached.
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        found.push((Path::new("/dev").join(name), PathBuf::from(backing.trim_end_matches('\n'))));
    }
    Ok(found)
}

/// The number N of `/dev/loopN`, which is the minor number of the device.
pub fn number(device: &Path) -> Option<u32> {
    device.file_name()?.to_str()?.strip_prefix("loop")?.parse().ok()
}

/// The major number of loop devices.
pub const MAJOR: u32 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }

    #[test]
    fn devices_have_numbers() {
        assert_eq!(number(Path::new("/dev/loop12")), Some(12));
        assert_eq!(number(Path::new("/dev/loop-control")), None);
        assert_eq!(number(Path::new("/dev/vda")), None);
    }
}
