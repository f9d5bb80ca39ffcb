//! Runs the fuzz target that `KNARR_FUZZ_TARGET` names; `list` prints the names of all, and `seeds` writes the first inputs of
//! all to directories below `KNARR_FUZZ_SEEDS`. With `KNARR_FUZZ_SEEDS`, the target's first inputs are written to that
//! directory. One binary holds all targets, because linking takes longest.

#![no_main]

use std::sync::LazyLock;

use knarr_fuzz_targets::{TARGETS, seeds};

type Run = fn(&[u8]);

static TARGET: LazyLock<Run> = LazyLock::new(|| {
    let name = std::env::var("KNARR_FUZZ_TARGET").expect("KNARR_FUZZ_TARGET names the target");
    if name == "list" {
        for (name, _) in TARGETS {
            println!("{name}");
        }
        return |_| {};
    }
    if name == "seeds" {
        let directory = std::env::var("KNARR_FUZZ_SEEDS").expect("KNARR_FUZZ_SEEDS names a directory");
        let mut names: Vec<&str> = seeds().into_iter().map(|(name, _)| name).collect();
        names.dedup();
        for name in names {
            write_seeds(name, &format!("{directory}/{name}"));
        }
        return |_| {};
    }
    let (_, run) = TARGETS.iter().find(|(known, _)| *known == name).expect("KNARR_FUZZ_TARGET names a target");
    if let Ok(directory) = std::env::var("KNARR_FUZZ_SEEDS") {
        write_seeds(&name, &directory);
    }
    *run
});

fn write_seeds(target: &str, directory: &str) {
    std::fs::create_dir_all(directory).expect("a directory for the seeds");
    let own = seeds().into_iter().filter(|(name, _)| *name == target).flat_map(|(_, inputs)| inputs);
    for (index, seed) in own.enumerate() {
        std::fs::write(format!("{directory}/seed-{index}"), seed).expect("a seed");
    }
}

libfuzzer_sys::fuzz_target!(
    init: {
        LazyLock::force(&TARGET);
    },
    |input: &[u8]| TARGET(input)
);
