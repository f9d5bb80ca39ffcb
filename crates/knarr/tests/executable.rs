//! The executable is hardened: loaded at a random address, its relocated tables read-only once it runs.

use std::fs;

const TYPE_SHARED: u16 = 3;
const SEGMENT_DYNAMIC: u32 = 2;
const SEGMENT_RELRO: u32 = 0x6474_e552;
const DYNAMIC_FLAGS: u64 = 30;
const DYNAMIC_FLAGS_1: u64 = 0x6fff_fffb;
const BIND_NOW: u64 = 8;
const NOW: u64 = 1;
const POSITION_INDEPENDENT: u64 = 0x0800_0000;

#[test]
fn the_executable_is_position_independent_with_full_relro() {
    let elf = Elf(fs::read(env!("CARGO_BIN_EXE_knarr")).expect("the executable was just built"));
    assert_eq!(elf.number16(16), TYPE_SHARED, "type of the file");
    assert!(elf.segment(SEGMENT_RELRO).is_some(), "segment that is made read-only");
    assert_eq!(elf.dynamic(DYNAMIC_FLAGS) & BIND_NOW, BIND_NOW, "all symbols are bound at the start");
    assert_eq!(elf.dynamic(DYNAMIC_FLAGS_1) & (NOW | POSITION_INDEPENDENT), NOW | POSITION_INDEPENDENT);
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
