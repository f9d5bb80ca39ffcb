//! The wall clock of a host, which the test can step.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Node, wait_for};

/// The file name of the library that shifts clocks.
pub const LIBRARY: &str = "libshifted_clock.so";

/// The clock of the processes of one node.
pub struct Clock {
    shift: PathBuf,
}

impl Clock {
    /// Gives a node that has not been started a clock of its own. `library` is what `library` returned.
    pub fn of(node: &mut Node, library: &Path) -> Self {
        let shift = node.data.with_extension("clock");
        std::fs::write(&shift, 0_i64.to_ne_bytes()).expect("a file");
        node.set_variable("LD_PRELOAD", &library.to_string_lossy());
        node.set_variable("KNARR_TEST_CLOCK", &shift.to_string_lossy());
        Clock { shift }
    }

    /// Steps the clock of a process of the node to this distance from the right time. Returns whether the process runs.
    pub fn step(&self, process: u32, seconds: i64) -> bool {
        use std::os::unix::fs::FileExt;
        let mut is_running = false;
        // A static program loads no library, and has the host's clock. One that has just started loads it in a moment.
        wait_for(&format!("process {process} to load the library that shifts clocks"), || {
            let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("it exists");
            // A process that has ended maps nothing.
            is_running = !maps.is_empty();
            !is_running || maps.contains(LIBRARY)
        });
        // In place: the file is mapped.
        let file = std::fs::File::options().write(true).open(&self.shift).expect("a file");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("it is written");
        is_running
    }
}

/// Compiles the library that shifts clocks.
pub fn library(directory: &Path) -> PathBuf {
    let library = directory.join(LIBRARY);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shifted_clock.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "-O", "--crate-type", "cdylib", "-o"])
        .arg(&library)
        .arg(source)
        .output()
        .expect("rustc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}
