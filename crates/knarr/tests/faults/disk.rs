//! A disk of a host that can be full or slow: a file system on a loop device.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES: u64 = 768 << 20;
/// Limits of the whole host's processes for the one device.
const THROTTLE: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device";

/// A file system that is mounted on a directory.
pub struct Disk {
    directory: PathBuf,
    image: PathBuf,
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Disk {
    pub fn mount(directory: &Path) -> Self {
        let image = directory.with_extension("disk");
        File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
        std::fs::create_dir_all(directory).expect("a directory");
        run("mkfs.ext4", &["-q", "-F", &image.to_string_lossy()]);
        run("mount", &["-o", "loop", &image.to_string_lossy(), &directory.to_string_lossy()]);
        Disk { directory: directory.to_owned(), image }
    }

    /// Leaves no free byte.
    pub fn fill(&self) {
        let file = File::create(self.filler()).expect("a file");
        for size in [64 << 20, 1 << 20, 4096] {
            let mut at = i64::try_from(file.metadata().expect("a file").len()).expect("a size");
            while nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), at, size).is_ok() {
                at += size;
            }
        }
    }

    pub fn free(&self) {
        std::fs::remove_file(self.filler()).expect("it is removed");
    }

    fn filler(&self) -> PathBuf {
        self.directory.join("filler")
    }

    /// Limits the writes per second; 0 is no limit. Returns whether this host can do so.
    pub fn limit_writes(&self, per_second: u32) -> bool {
        let device = std::fs::metadata(&self.directory).expect("a directory").dev();
        let (major, minor) = (nix::libc::major(device), nix::libc::minor(device));
        std::fs::write(THROTTLE, format!("{major}:{minor} {per_second}")).is_ok()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.limit_writes(0);
        let unmounted = Command::new("umount").arg(&self.directory).output();
        if !unmounted.is_ok_and(|output| output.status.success()) {
            eprintln!("cannot unmount {}", self.directory.display());
        }
        let _ = std::fs::remove_file(&self.image);
    }
}
