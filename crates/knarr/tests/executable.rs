//! The executable is hardened: loaded at a random address, its relocated tables read-only once it runs, and without core dumps.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

const TYPE_SHARED: u16 = 3;
const SEGMENT_DYNAMIC: u32 = 2;
const SEGMENT_RELRO: u32 = 0x6474_e552;
const DYNAMIC_FLAGS: u64 = 30;
const DYNAMIC_FLAGS_1: u64 = 0x6fff_fffb;
const BIND_NOW: u64 = 8;
const NOW: u64 = 1;
const POSITION_INDEPENDENT: u64 = 0x0800_0000;
const PACKED_RELOCATIONS: u64 = 36;

#[test]
fn the_executable_is_position_independent_with_full_relro() {
    let elf = Elf(fs::read(env!("CARGO_BIN_EXE_knarr")).expect("the executable was just built"));
    assert_eq!(elf.number16(16), TYPE_SHARED, "type of the file");
    assert!(elf.segment(SEGMENT_RELRO).is_some(), "segment that is made read-only");
    assert_eq!(elf.dynamic(DYNAMIC_FLAGS) & BIND_NOW, BIND_NOW, "all symbols are bound at the start");
    assert_eq!(elf.dynamic(DYNAMIC_FLAGS_1) & (NOW | POSITION_INDEPENDENT), NOW | POSITION_INDEPENDENT);
    assert_ne!(elf.dynamic(PACKED_RELOCATIONS), 0, "the flags of the build script are used");
}

/// The files of a process in /proc belong to root if it leaves no core dumps and cannot be traced by its user.
#[test]
fn core_dumps_are_off() {
    let file = fs::File::open(env!("CARGO_BIN_EXE_knarr")).expect("the executable was just built");
    let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        command.uid(65534);
    }
    // It waits for the reader of a full pipe.
    let (_reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(&[b' '; 65536]).expect("room for as much as a pipe holds");
    let mut running = command.arg("--help").stdout(writer).spawn().expect("it starts");
    let owner = || fs::metadata(format!("/proc/{}/environ", running.id())).map(|file| file.uid());
    let until = Instant::now() + Duration::from_secs(60);
    while owner().is_ok_and(|owner| owner != 0) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let owner = owner();
    running.kill().expect("it runs");
    running.wait().expect("it ends");
    assert_eq!(owner.ok(), Some(0), "the owner of the files");
}

/// A 64-bit little-endian executable.
struct Elf(Vec<u8>);

impl Elf {
    fn number16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.0[at..at + 2].try_into().unwrap())
    }

    fn number32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn number64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    /// Offset and size of the first segment of a type.
    fn segment(&self, wanted: u32) -> Option<(usize, usize)> {
        let table = self.number64(32) as usize;
        let (size, count) = (usize::from(self.number16(54)), usize::from(self.number16(56)));
        let headers = (0..count).map(|index| table + index * size);
        let header = headers.into_iter().find(|header| self.number32(*header) == wanted)?;
        Some((self.number64(header + 8) as usize, self.number64(header + 32) as usize))
    }

    /// The value of a dynamic entry, or 0.
    fn dynamic(&self, tag: u64) -> u64 {
        let (offset, size) = self.segment(SEGMENT_DYNAMIC).expect("a dynamic segment");
        let entries = (offset..offset + size).step_by(16);
        entries.into_iter().find(|entry| self.number64(*entry) == tag).map_or(0, |entry| self.number64(entry + 8))
    }
}
